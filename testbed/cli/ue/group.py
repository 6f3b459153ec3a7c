"""`testbed ue`: the commands of a UE."""

from testbed.cli.ue import agent, memory, run, serve

app = run.app
app.command("memory")(memory.memory)
app.command("agent")(agent.agent)
app.command("serve")(serve.serve)
