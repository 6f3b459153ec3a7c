"""Start-up and shutdown of a base station process."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from testbed.assets.fingerprints import model_fingerprint
from testbed.bs.bounds import check_bounds, check_free, listen, session_table
from testbed.bs.control.station import ControlSocket, controlled
from testbed.bs.engines.base import VerifyEngine
from testbed.bs.engines.checks import check_model
from testbed.bs.engines.paced import PacedEngine
from testbed.bs.engines.registry import ENGINES, leave_a_core, load_engine
from testbed.bs.engines.runner import EngineRunner, ThreadRunner
from testbed.bs.engines.target import describe, find
from testbed.bs.intake import Intake, Offer
from testbed.bs.judging.base import Judge
from testbed.bs.judging.registry import judge_kind, make_judge
from testbed.bs.metrics import MetricsFile
from testbed.bs.monitor.power import BsMeter, metered
from testbed.bs.monitor.process import Monitor, check_monitor, monitored
from testbed.bs.monitor.recent import Recent
from testbed.bs.monitor.source import source_of
from testbed.bs.monitor.status import StatusLine
from testbed.bs.observer import Observer
from testbed.bs.pending import PIECE
from testbed.bs.scheduling.admission import Admission
from testbed.bs.scheduling.estimator_online import OnlineConfig, OnlineEstimator
from testbed.bs.scheduling.registry import SCHEDULERS, SchedulerSetting, scheduler
from testbed.bs.scheduling.self_profile import self_profile
from testbed.bs.scheduling.window_hints import ON, Windows, window_config
from testbed.bs.server import BaseStation
from testbed.bs.sessions import SessionTable
from testbed.channel.server_link import ZmqServerLink
from testbed.clock import WallClock
from testbed.config import ServeConfig
from testbed.decision_head.head import INFO, WEIGHTS
from testbed.errors import BadInput, TestbedError
from testbed.optim.pass_time import Coefficients
from testbed.process.heap import loaded_heap_frozen
from testbed.process.interrupts import UNSTOPPABLE
from testbed.process.threads import result_of, started_threads
from testbed.tasks import cancel

Ready = Callable[[list[str], Offer, str | None], None]
"""Called when the BS is ready, with the addresses it listens on, its offer, and the URL of its live view."""
ANY = Coefficients(0.0, 0.0, 0.0, 1.0)
"""Placeholder for unknown coefficients, to check the other options before an engine is loaded."""
MARGIN = 0.02
"""`margin` of `PassLedger`."""
NORMAL = 1.25
"""Standard deviation of a normal error over its mean absolute value, √(π/2)."""
ROUGH = 3.0
"""Lasting bias, in standard deviations, that is no drift where a dozen passes were fitted."""


class Loaded(NamedTuple):
    """Loaded parts of a base station."""

    engine: VerifyEngine
    offer: Offer
    judge: Judge
    estimator: OnlineEstimator | None
    """Pass times, for a scheduler or window controller that needs them; else None."""


def serve(
    config: ServeConfig,
    ready: Ready,
    coefficients: Coefficients | None = None,
    pace: Coefficients | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        say: takes a line on the state every ten seconds, see `status.StatusLine`.
        coefficients: initial pass times for scheduler and window controller; None: a few passes are measured first.
        pace: least duration of passes; None: the engine's own.

    Raises:
        BadInput: a model, head, address, file or option that cannot be used.
        EngineError: the engine does not start.
    """
    scheduler(config.scheduler, _setting(config, ANY))
    check_free(check_bounds(config))
    window_config(config.window_controller or ON)
    check_monitor(config)
    metrics = MetricsFile(Path(config.metrics), config.metrics_interval_s) if config.metrics else None
    with contextlib.ExitStack() as stack:
        if metrics is not None:
            stack.callback(metrics.close)
        monitor = stack.enter_context(monitored(config))
        control = stack.enter_context(controlled(config))
        meter = stack.enter_context(metered(config))
        if metrics is not None and meter is not None:
            metrics.add("power", meter.snapshot)
        thread = started_threads(1, f"{UNSTOPPABLE} engine")
        other = stack.enter_context(started_threads(1, "rounds that take long to decide"))
        loaded = result_of(thread.submit(_load_all, config, coefficients, pace))  # a signal does not wait for it
        stack.enter_context(loaded_heap_frozen())  # until the engine is closed, whose collections take long otherwise
        stack.callback(thread.shutdown)
        if metrics is not None and isinstance(loaded.engine, PacedEngine):
            metrics.add("pace", loaded.engine.snapshot)
        stack.callback(lambda: thread.submit(loaded.engine.close).result())
        asyncio.run(_run(config, (thread, other), loaded, ready, metrics, monitor, meter, control, say))


def _load_all(config: ServeConfig, coefficients: Coefficients | None, pace: Coefficients | None) -> Loaded:
    """Load judge and engine in the thread that will own the engine, and estimate its pass times."""
    engine, offer, judge = _load(config)
    if pace is not None:
        engine = PacedEngine(engine, pace)
    offer = replace(offer, max_window=config.max_window, weights=_weights(config), judge=_judged_by(config))
    try:
        check_model(engine)
        return Loaded(engine, offer, judge, _estimator(config, engine, coefficients))
    except BaseException:
        engine.close()
        raise


def _weights(config: ServeConfig) -> str:
    """Fingerprint of the target; of an engine that is its own target, the kind."""
    return model_fingerprint(find(str(config.model))) if ENGINES[config.engine].needs_model else config.engine


def _judged_by(config: ServeConfig) -> str:
    """Kind of the judge, fingerprints of its head's files, and its budget."""
    parts = [judge_kind(config.judge, config.head, config.quality_budget)]
    if config.head is not None:
        parts += [model_fingerprint(Path(config.head) / name) for name in (INFO, WEIGHTS)]
    if config.quality_budget is not None:
        parts.append(f"{config.quality_budget:g}")
    return " ".join(parts)


def _estimator(config: ServeConfig, engine: VerifyEngine, coefficients: Coefficients | None) -> OnlineEstimator | None:
    if not SCHEDULERS[config.scheduler].needs_coefficients and config.window_controller is None:
        return None
    if coefficients is not None:
        return OnlineEstimator(coefficients)
    found, error = self_profile(engine)
    return OnlineEstimator(found, OnlineConfig(spread=max(OnlineConfig().spread, NORMAL * error), allowance=ROUGH))


def _load(config: ServeConfig) -> tuple[VerifyEngine, Offer, Judge]:
    """Load judge and engine in the thread that will own the engine."""
    kind = judge_kind(config.judge, config.head, config.quality_budget)
    entry, target = ENGINES.choose(config.engine), None
    if entry.needs_model:
        if config.model is None:
            raise BadInput("which model? give --model DIR, a Hugging Face id or a GGUF file")
        target = describe(config.model)
    leave_a_core(config.threads, target.weights_bytes if target else 0)
    judge = make_judge(kind, config.head, config.quality_budget, target.path if target else None)
    engine = load_engine(
        config.engine,
        target.path if target else None,
        dtype=config.dtype,
        max_model_len=config.max_model_len,
        vocab_size=target.vocab_size if target else None,
        **entry.keywords(msgspec.structs.asdict(config)),
    )
    offer = Offer(
        model=str(config.model) if target else config.engine,
        tokenizer=target.tokenizer if target else "",
        vocab_size=target.vocab_size if target else engine.vocab_size,
        hidden_size=engine.hidden_size,
        end_ids=target.end_ids if target else (),
        max_positions=engine.max_positions,
    )
    return engine, offer, judge


def _station(
    config: ServeConfig,
    link: ZmqServerLink,
    runner: EngineRunner,
    loaded: Loaded,
    sessions: SessionTable,
    observer: Observer | None,
    control: ControlSocket | None,
) -> BaseStation:
    engine, offer, judge, estimator = loaded
    known = None if estimator is None else estimator.coefficients
    setting = replace(
        _setting(config, known),
        kv_tokens=engine.kv_tokens,
        engine_tokens=engine.max_batch_tokens,
        engine_sessions=engine.max_sessions,
        cuts=PIECE % engine.block_size == 0,
    )
    if control is not None:
        setting = replace(setting, worths=control.hints.worths)
    admission = None
    if known is not None and SCHEDULERS[config.scheduler].admits and config.admission:
        admission = Admission(coefficients=known, max_requests=config.max_batch, kv_tokens=engine.kv_tokens)
    return BaseStation(
        link, runner, Intake(offer, sessions), scheduler(config.scheduler, setting), judge, WallClock(),
        estimator=estimator, admission=admission, block_size=engine.block_size, margin=MARGIN,
        windows=control.hints if control else _windows(config, loaded, link.owner), observer=observer,
    )  # fmt: skip


def _setting(config: ServeConfig, coefficients: Coefficients | None) -> SchedulerSetting:
    return SchedulerSetting(config.max_batch, config.max_batch_tokens, coefficients, own_tokens=config.chunk_tokens)


def _windows(config: ServeConfig, loaded: Loaded, owner: Callable[[bytes], bytes]) -> Windows | None:
    """The draft-window hints, if the configuration asks for them."""
    estimator = loaded.estimator
    if config.window_controller is None or estimator is None:
        return None
    chosen = window_config(config.window_controller)
    return Windows(chosen, lambda: estimator.coefficients, config.max_batch, loaded.offer.vocab_size, owner)


async def _run(
    config: ServeConfig,
    threads: tuple[ThreadPoolExecutor, Executor],
    loaded: Loaded,
    ready: Ready,
    metrics: MetricsFile | None,
    monitor: Monitor | None,
    meter: BsMeter | None,
    control: ControlSocket | None,
    say: Callable[[str], None],
) -> None:
    link = listen(config, loaded.offer)
    try:
        sessions = session_table(config, loaded.engine.kv_tokens, link.owner)
        weight = control.hints.weight if control else None
        recent = Recent(sessions, text=config.monitor_text, weight=weight) if monitor else None
        status, runner = StatusLine(sessions, recent), ThreadRunner(loaded.engine, *threads)
        station = _station(config, link, runner, loaded, sessions, status, control)

        def count() -> dict[str, Any]:
            return station.metrics() | {"task_failures": dict(link.background.failures)}

        if monitor and recent:
            await monitor.attach(source_of(config, loaded.offer, count, recent, link.background), link.background)
        if control:
            link.background.start("controller", lambda: control.serve(station.metrics, sessions.ues.knows))
        serving = asyncio.create_task(station.serve())
        if meter:
            link.background.start("power", meter.watch)
        telling = [link.background.start("status", lambda: status.keep(WallClock(), say))]
        if metrics:
            telling.append(link.background.start("metrics", lambda: metrics.keep(count, WallClock())))
        _stop_on_signals(serving)
        ready(link.addresses, loaded.offer, monitor.url if monitor else None)
        await _served(serving)
        await cancel(*telling)
    finally:
        if monitor:
            await monitor.detach()
        link.close()


def _stop_on_signals(serving: asyncio.Task[None]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)


async def _served(serving: asyncio.Task[None]) -> None:
    """Wait until serving is cancelled.

    Raises:
        TestbedError: it failed on input; not `BadInput`, so that a supervisor restarts the base station.
    """
    with contextlib.suppress(asyncio.CancelledError):
        try:
            await serving
        except BadInput as exc:
            raise TestbedError(f"the base station failed: {exc}") from exc
