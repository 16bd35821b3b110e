import time

import pytest

from pic_worker.adapters.nixl.progress_pace import agents_sleep_when_idle

pytestmark = pytest.mark.integration


def test_an_idle_nixl_agent_takes_no_time() -> None:
    api = pytest.importorskip("nixl._api", reason="NIXL is not installed")
    config = api.nixlBind.nixlAgentConfig
    with agents_sleep_when_idle():
        agent = api.nixl_agent("idle", api.nixl_agent_config(backends=["UCX"]))
    assert api.nixlBind.nixlAgentConfig is config
    before_s = time.process_time()
    time.sleep(0.5)
    # A polling agent would have taken all of the half second.
    assert time.process_time() - before_s < 0.25
    del agent
