"""`testbed channel`: the link between UE and BS: measured, emulated, replayed, and what it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from testbed import fields
from testbed.channel.cost import Overheads, Payload, Sizes, id_bits
from testbed.channel.csi import Csi
from testbed.cli.channel import convert, fading, measure, radio, record, validate
from testbed.cli.options import AsJson, ReadyJson, completion, configured
from testbed.cli.output import note, print_json
from testbed.cli.screens import CommandGroup
from testbed.cli.tables import TableCommand
from testbed.config import Config
from testbed.errors import BadInput
from testbed.options import option
from testbed.protocols import PROTOCOLS
from testbed.protocols.base import RoundProtocol

if TYPE_CHECKING:
    from testbed.channel.spec import ChannelSpec

app = CommandGroup(
    no_args_is_help=True, help="The link between UE and BS: measure, emulate and replay it, and compute its costs."
)


@app.callback()
def group() -> None:
    """The link between UE and BS."""


class CostOptions(Config, frozen=True):
    """Configuration of `testbed channel cost`."""

    protocol: Annotated[str, option("Protocol.", kinds="protocols", panel="Round")] = "greedy"
    window: Annotated[int, option("Drafted tokens K.", least=1, most=10**6)] = 8
    queried: Annotated[int, option("sh: requested positions m. split: above 0 if a token is rejected.")] = 0
    vocab: Annotated[int, option("Vocabulary size V.", least=1, most=2**31, panel="Sizes")] = 128256
    hidden: Annotated[int, option("Hidden size d_d of the drafter.", least=0, most=2**24)] = 2048
    hidden_bits: Annotated[int, option("Bits b_h per element of a hidden state.", least=0, most=64, unit="bits")] = 16
    scale_bits: Annotated[
        int, option("Bits of a hidden state besides its elements: 16 on our wire at 8 and 4 bits.", unit="bits")
    ] = 0
    q_top: fields.QTop = 0
    q_bits: fields.QBits = 16
    id_bits: Annotated[int | None, option("Bits of a token id. Default: ceil(log2 V).", unit="bits")] = None
    overhead_up_bits: Annotated[int, option("Fixed bits b_ul of an uplink message.", unit="bits")] = 0
    overhead_down_bits: Annotated[int, option("Fixed bits b_dl of a downlink message.", unit="bits")] = 0
    uplink_mbps: Annotated[float, option("Uplink rate.", least=1e-6, most=1e9, unit="Mbit/s", panel="Link")] = 20.0
    downlink_mbps: Annotated[float, option("Downlink rate.", least=1e-6, most=1e9, unit="Mbit/s")] = 20.0
    per_up: Annotated[float, option("Uplink packet error rate.")] = 0.0
    per_down: Annotated[float, option("Downlink packet error rate.")] = 0.0
    rtt_ms: Annotated[float, option("Round-trip time without payload, T_rtt.", least=0, most=1e9, unit="ms")] = 50.0


@app.command()
@configured(CostOptions)
def cost(config: CostOptions, as_json: AsJson = False) -> None:
    """Compute the cost of one round on the link (WISV eqs. 3-10).

    Examples:

        testbed channel cost --protocol fh --window 16 --uplink-mbps 20 --rtt-ms 50

        testbed channel cost --protocol sh --window 16 --queried 3 --id-bits 32 --hidden 96 --json
    """
    ids = id_bits(config.vocab) if config.id_bits is None else config.id_bits
    sizes = Sizes(config.hidden, ids, config.hidden_bits, config.vocab, config.scale_bits, config.q_top, config.q_bits)
    csi = Csi(config.uplink_mbps, config.downlink_mbps, config.rtt_ms, config.per_up, config.per_down)
    overheads = Overheads(config.overhead_up_bits, config.overhead_down_bits)
    protocol = PROTOCOLS.choose(config.protocol)
    config.refuse_unused(_unused(protocol, config, sizes), f"with protocol {config.protocol}")
    found = protocol.cost(config.window, config.queried, sizes, csi, overheads)
    if as_json:
        print_json(found._asdict())
        return
    print(f"uplink    {found.uplink_bits} bits")
    print(f"downlink  {found.downlink_bits} bits")
    print(f"RTTs      {found.round_trips}")
    print(f"latency   {found.latency_s * 1e3:.3f} ms a round")


def _unused(protocol: RoundProtocol, config: CostOptions, sizes: Sizes) -> list[str]:
    """Options of the protocol without which no round of this window costs anything else; sizes of models are given for
    all protocols alike.
    """
    rounds = sorted({0, 1, config.window})

    def costs(sizes: Sizes) -> list[Payload]:
        return [protocol.payload(config.window, queried, sizes) for queried in rounds]

    plain = CostOptions()
    fields = ("hidden_bits", "scale_bits", "q_top", "q_bits")
    found = [one for one in fields if costs(sizes._replace(**{one: getattr(plain, one)})) == costs(sizes)]
    return found if len(set(costs(sizes))) > 1 else [*found, "queried"]


class EmulateOptions(Config, frozen=True):
    """Configuration of `testbed channel emulate`."""

    channel: Annotated[
        str,
        option("kind=proxy|tc,uplink_mbps=20,downlink_mbps=20,rtt_ms=50[,jitter_ms=..][,per=..]", panel="Link"),
    ] = "kind=proxy"
    listen: Annotated[str, option("Address for UEs; port * takes a free one.", metavar="ADDRESS")] = (
        "tcp://127.0.0.1:5556"
    )
    to: Annotated[str, option("Base-station address.", metavar="ADDRESS")] = "tcp://127.0.0.1:5555"
    seconds: Annotated[float | None, option("Duration. Default: until Ctrl-C.", unit="s")] = None
    interface: Annotated[str | None, option("Shape what leaves this interface.", panel="With kind=tc")] = None
    direction: Annotated[
        Literal["uplink", "downlink"], option("Direction of the link that leaves through the interface.")
    ] = "uplink"
    destinations: Annotated[str, option("IPv4 addresses that are shaped separately, separated by commas.")] = ""
    namespaces: Annotated[int, option("Number of UE namespaces to make instead.")] = 0
    qdisc: Annotated[Literal["auto", "netem", "tbf"], option("Queueing discipline.")] = "auto"
    trace: Annotated[str | None, option("Follow this trace.", completes="traces")] = None
    dry_run: Annotated[bool, option("Print the commands and run nothing.")] = False


@app.command()
@configured(EmulateOptions)
def emulate(
    config: EmulateOptions,
    force: Annotated[
        int,
        typer.Option("--force", count=True, help="Twice: shape the default route too.", rich_help_panel="With kind=tc"),
    ] = 0,
    as_json: ReadyJson = False,
) -> None:
    """Put an emulated link before a base station: a relay in user space, or tc (needs root).

    Every connection to the relay is a separate link; UEs connect to the relay instead of the base station. With
    `shares=FILE` (JSON of `optim bandwidth`) every UE has its own rate and address, at consecutive ports. With tc,
    either the traffic that leaves an interface is shaped, or UEs get namespaces of their own.

    Examples:

        testbed channel emulate --channel kind=proxy,uplink_mbps=20,downlink_mbps=20,rtt_ms=50

        testbed channel emulate --channel kind=trace,file=walk --listen tcp://0.0.0.0:5556 --to tcp://192.0.2.7:5555

        testbed channel emulate --channel kind=proxy,shares=shares.json --listen tcp://127.0.0.1:5600

        testbed channel emulate --channel kind=tc,uplink_mbps=20,rtt_ms=50 --interface wlan0 --dry-run

        testbed channel emulate --channel kind=tc,uplink_mbps=20,downlink_mbps=50 --namespaces 2
    """
    from testbed.channel.spec import parse_channel

    spec = parse_channel(config.channel)
    usual = EmulateOptions()
    given = {name for name in config.__struct_fields__ if getattr(config, name) != getattr(usual, name)}
    if spec.kind == "tc":
        _without(given & _OF_RELAY | ({"json"} if as_json else set()), "a relay", "kind=tc")
        _shape(spec, config, force)
    else:
        _without(given & _OF_TC | ({"force"} if force else set()), "kind=tc", f"kind={spec.kind}")
        _relay(spec, config.listen, config.to, config.seconds, as_json)


_OF_RELAY = {"listen", "to"}
_OF_TC = {"interface", "direction", "destinations", "namespaces", "qdisc", "trace", "dry_run"}


def _without(options: set[str], owner: str, kind: str) -> None:
    """Refuse options that the chosen kind of link would ignore."""
    if options:
        named = ", ".join("--" + name.replace("_", "-") for name in sorted(options))
        raise BadInput(f"{named}: options of {owner}, without effect with {kind}")


def _shape(spec: ChannelSpec, config: EmulateOptions, force: int) -> None:
    """Emulate by tc."""
    from testbed.assets.bundled_files import find
    from testbed.channel.spec import tc_config
    from testbed.channel.tc.session import run_tc
    from testbed.channel.trace import read_trace

    chosen = tc_config(
        spec, interface=config.interface, direction=config.direction, namespaces=config.namespaces,
        qdisc=config.qdisc, seconds=config.seconds, force=force,
        destinations=tuple(filter(None, config.destinations.split(","))),
    )  # fmt: skip
    trace = read_trace(find("traces", config.trace)) if config.trace else None
    run_tc(chosen, trace, config.dry_run, print if config.dry_run else note)


def _relay(spec: ChannelSpec, listen: str, to: str, seconds: float | None, as_json: bool) -> None:
    """Emulate by a relay in user space."""
    from testbed.channel.emulate import relay

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
@configured(EmulateOptions, only=["listen", "to", "seconds"])
def replay(
    config: EmulateOptions,
    trace: Annotated[
        str, typer.Argument(help="A bundled trace by name, or a canonical CSV.", autocompletion=completion("traces"))
    ],
    as_json: ReadyJson = False,
) -> None:
    """Replay a trace before a base station, in a loop from its beginning.

    Examples:

        testbed channel replay drive --to tcp://192.0.2.7:5555
    """
    from testbed.channel.spec import parse_channel

    spec = parse_channel(f"kind=trace,file={trace},via=proxy")
    _relay(spec, config.listen, config.to, config.seconds, as_json)


app.command("measure", cls=TableCommand)(measure.measure)
app.command("record")(record.record)
app.command("validate", cls=TableCommand)(validate.validate)
app.command("convert")(convert.convert)
app.command("fading")(fading.fading)
app.command("radio")(radio.radio)
