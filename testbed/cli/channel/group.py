"""`testbed channel`: the link between UE and BS: measured, emulated, replayed, and what it costs."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from testbed.channel.cost import Overheads, Sizes, id_bits
from testbed.channel.csi import Csi
from testbed.cli.channel import measure, record, traces, validate
from testbed.cli.output import note, print_json
from testbed.cli.screens import CommandGroup
from testbed.protocols import PROTOCOLS

app = CommandGroup(
    no_args_is_help=True, help="The link between UE and BS: measured, emulated, replayed, and what it costs."
)


@app.callback()
def group() -> None:
    """The link between UE and BS."""


@app.command()
def cost(
    protocol: Annotated[str, typer.Option(help=f"Protocol: {', '.join(PROTOCOLS)}.")] = "greedy",
    window: Annotated[int, typer.Option(help="Drafted tokens K.")] = 8,
    vocab: Annotated[int, typer.Option(help="Vocabulary V.")] = 128256,
    hidden: Annotated[int, typer.Option(help="Hidden size d_d of the drafter.")] = 2048,
    hidden_bits: Annotated[int, typer.Option(help="Bits b_h of an element of a hidden state.")] = 16,
    scale_bits: Annotated[
        int, typer.Option(help="Bits that a hidden state takes besides its elements: 16 on our wire at 8 and 4 bits.")
    ] = 0,
    ids: Annotated[int | None, typer.Option("--id-bits", help="Bits of a token id; default: ceil(log2 V).")] = None,
    queried: Annotated[int, typer.Option(help="Requested positions m (sh); 1: rejected (split).")] = 0,
    uplink_mbps: Annotated[float, typer.Option(help="Uplink rate.")] = 20.0,
    downlink_mbps: Annotated[float, typer.Option(help="Downlink rate.")] = 20.0,
    per_up: Annotated[float, typer.Option(help="Uplink packet error rate.")] = 0.0,
    per_down: Annotated[float, typer.Option(help="Downlink packet error rate.")] = 0.0,
    rtt_ms: Annotated[float, typer.Option(help="Round-trip time without payload, T_rtt.")] = 50.0,
    overhead_up_bits: Annotated[int, typer.Option(help="Fixed bits b_ul of an uplink message.")] = 0,
    overhead_down_bits: Annotated[int, typer.Option(help="Fixed bits b_dl of a downlink message.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """What one round costs on the link (WISV eqs. 3-10).

    Examples:

        testbed channel cost --protocol fh --window 16 --uplink-mbps 20 --rtt-ms 50

        testbed channel cost --protocol sh --window 16 --queried 3 --id-bits 32 --hidden 96 --json
    """
    sizes = Sizes(hidden, id_bits(vocab) if ids is None else ids, hidden_bits, vocab, scale_bits)
    csi = Csi(uplink_mbps, downlink_mbps, rtt_ms, per_up, per_down)
    overheads = Overheads(overhead_up_bits, overhead_down_bits)
    found = PROTOCOLS.choose(protocol).cost(window, queried, sizes, csi, overheads)
    if as_json:
        print_json(found._asdict())
        return
    print(f"uplink    {found.uplink_bits} bits")
    print(f"downlink  {found.downlink_bits} bits")
    print(f"RTTs      {found.round_trips}")
    print(f"latency   {found.latency_s * 1e3:.3f} ms a round")


@app.command()
def emulate(
    channel: Annotated[
        str, typer.Option(help="kind=proxy|tc,uplink_mbps=20,downlink_mbps=20,rtt_ms=50[,jitter_ms=..][,per=..]")
    ] = "kind=proxy",
    listen: Annotated[str, typer.Option(help="Where UEs connect; port * takes a free one.")] = "tcp://127.0.0.1:5556",
    to: Annotated[str, typer.Option(help="Address of the base station.")] = "tcp://127.0.0.1:5555",
    seconds: Annotated[float | None, typer.Option(help="Stop after this long; default: on Ctrl-C.")] = None,
    interface: Annotated[str | None, typer.Option(help="tc: shape what leaves this interface.")] = None,
    direction: Annotated[
        Literal["uplink", "downlink"], typer.Option(help="tc: which direction leaves through the interface.")
    ] = "uplink",
    destinations: Annotated[str, typer.Option(help="tc: IPv4 addresses that get the rate each for itself.")] = "",
    namespaces: Annotated[int, typer.Option(help="tc: or make so many UE namespaces.")] = 0,
    qdisc: Annotated[Literal["auto", "netem", "tbf"], typer.Option(help="tc: what shapes.")] = "auto",
    trace: Annotated[str | None, typer.Option(help="tc: follow this trace.")] = None,
    force: Annotated[int, typer.Option("--force", count=True, help="tc: twice takes the default route too.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="tc: print the commands, touch nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON line once it is there.")] = False,
) -> None:
    """Put an emulated link before a base station: a relay in user space, or tc (needs root).

    Every connection to the relay is a link of its own; a UE takes the relay's address in place of the base station's.
    With `shares=FILE` (JSON of `optim bandwidth`) every UE has a rate and an address of its own, at ports that follow
    each other.
    With tc, either what leaves an interface is shaped, or UEs get namespaces of their own.

    Examples:

        testbed channel emulate --channel kind=proxy,uplink_mbps=20,downlink_mbps=20,rtt_ms=50

        testbed channel emulate --channel kind=trace,file=walk --listen tcp://0.0.0.0:5556 --to tcp://192.0.2.7:5555

        testbed channel emulate --channel kind=proxy,shares=shares.json --listen tcp://127.0.0.1:5600

        testbed channel emulate --channel kind=tc,uplink_mbps=20,rtt_ms=50 --interface wlan0 --dry-run

        testbed channel emulate --channel kind=tc,uplink_mbps=20,downlink_mbps=50 --namespaces 2
    """
    from testbed.bundled_files import find
    from testbed.channel.emulate import relay
    from testbed.channel.spec import parse_channel, tc_config
    from testbed.channel.tc.session import run_tc
    from testbed.channel.trace import read_trace

    spec = parse_channel(channel)
    if spec.kind == "tc":
        config = tc_config(
            spec, interface=interface, direction=direction, namespaces=namespaces, qdisc=qdisc, seconds=seconds,
            force=force, destinations=tuple(filter(None, destinations.split(","))),
        )  # fmt: skip
        say = print if dry_run else note
        run_tc(config, read_trace(find("traces", trace)) if trace else None, dry_run, say)
        return

    def ready(said: dict[str, object]) -> None:
        if as_json:
            print_json(said)
        else:
            note(f"relaying {said['listen']} to {said['target']} (pid {said['pid']}); Ctrl-C stops it")

    passed = relay(spec, listen, to, ready, seconds)
    note(
        f"{passed['connections']} connections ({passed['refused']} refused), "
        f"{passed['uplink_bytes']} bytes up, {passed['downlink_bytes']} down"
    )


@app.command()
def replay(
    trace: Annotated[str, typer.Argument(help="A bundled trace by name, or a canonical CSV.")],
    listen: Annotated[str, typer.Option(help="Where UEs connect; port * takes a free one.")] = "tcp://127.0.0.1:5556",
    to: Annotated[str, typer.Option(help="Address of the base station.")] = "tcp://127.0.0.1:5555",
    seconds: Annotated[float | None, typer.Option(help="Stop after this long; default: on Ctrl-C.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON line once it listens.")] = False,
) -> None:
    """Replay a trace before a base station, from its beginning and again when it ends.

    Examples:

        testbed channel replay drive --to tcp://192.0.2.7:5555
    """
    emulate(f"kind=trace,file={trace},via=proxy", listen, to, seconds, as_json=as_json)


app.command("measure")(measure.measure)
app.command("record")(record.record)
app.command("validate")(validate.validate)
app.command("convert")(traces.convert)
app.command("fading")(traces.fading)
