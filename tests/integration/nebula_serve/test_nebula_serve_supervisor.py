"""The supervisor over real child processes."""

import asyncio
import io
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from nebula_serve.backoff import RestartPolicy
from nebula_serve.console import Console
from nebula_serve.errors import StartFailedError
from nebula_serve.process_plan import ProcessSpec
from nebula_serve.readiness import ReadyFileProbe
from nebula_serve.supervisor import StopPolicy, Supervisor

pytestmark = pytest.mark.integration

SERVING = """
import os, pathlib, time
pathlib.Path(os.environ["NEBULA_READY_FILE"]).touch()
print("serving", flush=True)
time.sleep(60)
"""
DEAF = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SERVING
WITH_GRANDCHILD = (
    "import subprocess, sys\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
    "print('grandchild', child.pid, flush=True)\n" + SERVING
)
FAILING = "import sys\nprint('cannot bind', flush=True)\nsys.exit(3)"
QUICK = RestartPolicy(first_delay_s=0.05, longest_delay_s=0.2, max_failed_starts=3)


class World:
    """Supervised scripts with a log to look at."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = io.StringIO()
        self.was_ready = False

    def spec(self, name: str, script: str) -> ProcessSpec:
        ready_file = self.folder / name
        return ProcessSpec(
            name=name,
            service=name,
            argv=(sys.executable, "-S", "-c", script),
            environment={"NEBULA_READY_FILE": str(ready_file)},
            config_file=self.folder / "unused",
            config_json="{}",
            probe=ReadyFileProbe(ready_file),
        )

    def supervisor(self, *stages: list[ProcessSpec], stop: StopPolicy | None = None) -> Supervisor:
        return Supervisor(
            stages,
            self.folder,
            Console(self.out, [], width=10),
            restart=QUICK,
            stop=stop or StopPolicy(),
            waiting_report_s=0.2,
            on_ready=self._mark_ready,
        )

    def _mark_ready(self) -> None:
        self.was_ready = True

    async def eventually(self, condition: Callable[[], bool], limit_s: float = 10.0) -> None:
        deadline_s = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < deadline_s, f"not in time; log:\n{self.out.getvalue()}"
            await asyncio.sleep(0.01)

    def log(self) -> str:
        return self.out.getvalue()


def is_alive(pid: int) -> bool:
    """Neither gone nor a zombie that only waits to be noticed by whoever inherited it."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def pids(supervisor: Supervisor) -> list[int]:
    return [keeper.pid for keeper in supervisor.keepers if keeper.pid is not None]


async def test_everything_is_ready_then_stops_and_nothing_is_left(world: World) -> None:
    supervisor = world.supervisor([world.spec("plane", SERVING)], [world.spec(f"w-{i}", SERVING) for i in range(3)])
    running = asyncio.create_task(supervisor.run())
    await world.eventually(lambda: world.was_ready)
    started = pids(supervisor)
    assert len(started) == 4
    supervisor.request_stop("test")
    await asyncio.wait_for(running, 5)
    assert not [pid for pid in started if is_alive(pid)]
    assert "w-1        | serving" in world.log()


async def test_a_later_stage_starts_when_the_one_before_is_ready_and_stops_first(world: World) -> None:
    supervisor = world.supervisor([world.spec("plane", SERVING)], [world.spec("worker", SERVING)])
    running = asyncio.create_task(supervisor.run())
    await world.eventually(lambda: world.was_ready)
    supervisor.request_stop("test")
    await running
    log = world.log()
    assert log.index("plane ready") < log.index("worker started")
    assert log.index("worker stopped") < log.index("plane stopped")


async def test_each_process_leads_a_group_of_its_own(world: World) -> None:
    supervisor = world.supervisor([world.spec("a", SERVING), world.spec("b", SERVING)])
    running = asyncio.create_task(supervisor.run())
    await world.eventually(lambda: world.was_ready)
    assert all(os.getpgid(pid) == pid for pid in pids(supervisor))
    supervisor.request_stop("test")
    await running


async def test_a_killed_process_is_restarted_and_ready_again(world: World) -> None:
    supervisor = world.supervisor([world.spec("w-0", SERVING), world.spec("w-1", SERVING)])
    running = asyncio.create_task(supervisor.run())
    await world.eventually(lambda: world.was_ready)
    first, other = supervisor.keepers
    killed, kept = first.pid, other.pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    await world.eventually(lambda: first.pid not in (None, killed) and first.ready.is_set())
    assert other.pid == kept
    assert "w-0 was ended by SIGKILL; restart in 0.05 s" in world.log()
    supervisor.request_stop("test")
    await running


async def test_restarts_wait_longer_each_time(world: World) -> None:
    # It serves for longer than readiness takes to be seen, so that its crashes never end the start.
    crashing = SERVING.replace("time.sleep(60)", "time.sleep(0.3)")
    supervisor = world.supervisor([world.spec("w", crashing)])
    running = asyncio.create_task(supervisor.run())
    await world.eventually(lambda: world.log().count("restart in 0.2 s") >= 2)
    supervisor.request_stop("test")
    await running
    delays = [line.rsplit("restart in ", 1)[1] for line in world.log().splitlines() if "restart in" in line]
    # 0.05 doubled up to the longest, 0.2
    assert delays[:4] == ["0.05 s", "0.1 s", "0.2 s", "0.2 s"]


async def test_a_process_that_never_serves_ends_the_start_and_stops_the_others(world: World) -> None:
    supervisor = world.supervisor([world.spec("good", SERVING), world.spec("bad", FAILING)])
    with pytest.raises(StartFailedError, match="bad exited with code 3; it failed 3 times") as caught:
        await asyncio.wait_for(supervisor.run(), 10)
    assert caught.value.last_lines == ("cannot bind",)
    assert caught.value.exit_code == 1
    assert not world.was_ready
    assert not pids(supervisor)


async def test_of_several_processes_that_cannot_start_one_is_told(world: World) -> None:
    specs = [world.spec(f"bad-{i}", FAILING) for i in range(4)]
    with pytest.raises(StartFailedError, match=r"bad-\d exited with code 3"):
        await asyncio.wait_for(world.supervisor(specs).run(), 10)


async def test_a_program_that_does_not_exist_ends_the_start(world: World) -> None:
    spec = ProcessSpec(
        name="w",
        service="w",
        argv=("/absent/program",),
        environment={},
        config_file=world.folder / "unused",
        config_json="{}",
        probe=ReadyFileProbe(world.folder / "w"),
    )
    with pytest.raises(StartFailedError, match="cannot be started: No such file"):
        await asyncio.wait_for(world.supervisor([spec]).run(), 10)


async def test_a_deaf_process_is_killed_when_its_time_is_up(world: World) -> None:
    stop = StopPolicy(services_s=0.3, planes_s=0.1)
    supervisor = world.supervisor([world.spec("deaf", DEAF), world.spec("good", SERVING)], stop=stop)
    running = asyncio.create_task(supervisor.run())
    await world.eventually(lambda: world.was_ready)
    started_s = time.monotonic()
    supervisor.request_stop("test")
    await running
    assert time.monotonic() - started_s >= stop.services_s
    assert "deaf did not stop within 0 s: killed" in world.log()
    assert "good stopped: was ended by SIGTERM" in world.log()


async def test_the_default_times_add_up_to_less_than_ten_seconds() -> None:
    stop = StopPolicy()
    # services, then NATS, each with the wait after SIGKILL
    assert stop.services_s + stop.killed_s + stop.planes_s + stop.killed_s < 10.0


async def test_a_second_request_kills_at_once(world: World) -> None:
    supervisor = world.supervisor([world.spec("deaf", DEAF)])
    running = asyncio.create_task(supervisor.run())
    await world.eventually(lambda: world.was_ready)
    supervisor.request_stop("test")
    supervisor.request_stop("again")
    await asyncio.wait_for(running, 2)


async def test_what_a_process_started_itself_stops_with_it(world: World) -> None:
    supervisor = world.supervisor([world.spec("w", WITH_GRANDCHILD)])
    running = asyncio.create_task(supervisor.run())
    await world.eventually(lambda: world.was_ready and "grandchild" in world.log())
    grandchild = int(world.log().split("grandchild ")[1].split()[0])
    assert is_alive(grandchild)
    supervisor.request_stop("test")
    await running
    await world.eventually(lambda: not is_alive(grandchild))


async def test_what_a_crashed_process_had_started_is_gone_before_its_restart(world: World) -> None:
    supervisor = world.supervisor([world.spec("w", WITH_GRANDCHILD)])
    running = asyncio.create_task(supervisor.run())
    await world.eventually(lambda: world.was_ready and "grandchild" in world.log())
    grandchild = int(world.log().split("grandchild ")[1].split()[0])
    (keeper,) = supervisor.keepers
    assert keeper.pid is not None
    os.kill(keeper.pid, signal.SIGKILL)
    await world.eventually(lambda: "restart in" in world.log())
    await world.eventually(lambda: not is_alive(grandchild))
    supervisor.request_stop("test")
    await running


async def test_a_signal_stops_everything(world: World) -> None:
    supervisor = world.supervisor([world.spec("w", SERVING)])
    running = asyncio.create_task(supervisor.run())
    await world.eventually(lambda: world.was_ready)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(running, 5)
    assert "got SIGTERM: stopping all processes" in world.log()


async def test_a_stop_while_a_process_waits_for_its_restart_ends_at_once(world: World) -> None:
    supervisor = Supervisor(
        [[world.spec("w", FAILING)]],
        world.folder,
        Console(world.out, [], width=10),
        restart=RestartPolicy(first_delay_s=60.0, longest_delay_s=60.0),
    )
    running = asyncio.create_task(supervisor.run())
    await world.eventually(lambda: "restart in 60 s" in world.log())
    supervisor.request_stop("test")
    await asyncio.wait_for(running, 2)


async def test_processes_that_are_awaited_are_named(world: World) -> None:
    slow = "import time\ntime.sleep(60)"
    supervisor = world.supervisor([world.spec("quick", SERVING), world.spec("slow", slow)])
    running = asyncio.create_task(supervisor.run())
    await world.eventually(lambda: "waiting for slow since" in world.log())
    supervisor.request_stop("test")
    await running


async def test_long_and_broken_lines_do_not_stop_the_log(world: World) -> None:
    odd = "import sys\nsys.stdout.buffer.write(b'x' * 200_000 + b'\\n\\xff\\xfe ok\\n')\nsys.stdout.flush()\n" + SERVING
    supervisor = world.supervisor([world.spec("w", odd)])
    running = asyncio.create_task(supervisor.run())
    await world.eventually(lambda: world.was_ready and "serving" in world.log())
    supervisor.request_stop("test")
    await running
    assert world.log().count("x") >= 200_000
    assert "\ufffd\ufffd ok" in world.log()
