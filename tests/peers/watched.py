"""The back end `deltawire` with a log: it writes updates to the file `updates` beside this one,
which is a copy made by the test. While `updates.hold` exists, an update waits. If
`updates.refuse` exists, the next one fails."""
import dataclasses
import json
import time
from pathlib import Path

import deltawire.vllm

UPDATES = Path(__file__).with_name("updates")


def register():
    deltawire.vllm.register("watched", __name__, "WatchedEngine")


def __getattr__(name):
    """Makes the class when vLLM asks for it, because a plugin is loaded first."""
    if name != "WatchedEngine":
        raise AttributeError(name)
    from deltawire.vllm.backend import DeltawireEngine

    class WatchedEngine(DeltawireEngine):
        def receive_weights(self, update_info):
            with UPDATES.open("a") as f:
                f.write(json.dumps(dataclasses.asdict(update_info)) + "\n")
            deadline = time.monotonic() + 600
            while UPDATES.with_suffix(".hold").exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            refuse = UPDATES.with_suffix(".refuse")
            if refuse.exists():
                refuse.unlink()
                raise RuntimeError("refused, as the test wants")
            super().receive_weights(update_info)

    return WatchedEngine
