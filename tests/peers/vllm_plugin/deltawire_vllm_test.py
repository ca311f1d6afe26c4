"""A weight-transfer back end of vLLM, named 'deltawire-test', for the tests.

An update names a checkpoint directory and the version that it holds; the back end loads
that checkpoint through the model's own load_weights(). It reads the whole directory for
patches too: what is tested is the driver, not how fast a patch is applied.
"""
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)


def register():
    """Called by vLLM in each of its processes, before the model is loaded."""
    from vllm import _custom_ops
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    from vllm.model_executor.layers import utils

    torch.cpu._init_amx()  # without asking the kernel for it, the first use is SIGILL
    # The kernels for CPUs keep a packed copy of each linear weight and drop the weight:
    # loading one anew would change nothing that is generated.
    _custom_ops._supports_onednn = False
    utils.check_cpu_sgl_kernel = lambda n, k, dtype: False
    if "deltawire-test" not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(
            "deltawire-test", __name__, "DeltawireTestEngine"
        )


@dataclass
class InitInfo(WeightTransferInitInfo):
    pass


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    fields: dict = field(default_factory=dict)


class DeltawireTestEngine(WeightTransferEngine[InitInfo, UpdateInfo]):
    init_info_cls = InitInfo
    update_info_cls = UpdateInfo

    def init_transfer_engine(self, init_info):
        pass

    def start_weight_update(self):
        packed = [name for name, p in self.model.named_parameters() if p.numel() == 0]
        if packed:
            raise RuntimeError(f"the weights were packed away: {packed[0]}")

    def parse_update_info(self, update_dict):
        wanted = {"format", "kind", "stream", "from_version", "version", "state", "dir", "patch"}
        if set(update_dict) != wanted or update_dict["format"] != "deltawire/1":
            raise ValueError(f"not an update of deltawire/1: {sorted(update_dict)}")
        return UpdateInfo(update_dict)

    def receive_weights(self, update_info):
        from vllm.model_executor.model_loader.weight_utils import (
            safetensors_weights_iterator,
        )

        update = update_info.fields
        report(update)
        check(update)
        files = sorted(str(f) for f in Path(update["dir"]).glob("*.safetensors"))
        loaded = self.model.load_weights(
            safetensors_weights_iterator(files, use_tqdm_on_load=False)
        )
        missing = {name for name, _ in self.model.named_parameters()} - set(loaded)
        if missing:
            raise RuntimeError(f"{update['dir']} lacks {sorted(missing)[0]}")

    def finish_weight_update(self):
        pass

    def shutdown(self):
        pass


def check(update):
    """Refuses an update that contradicts itself. What the directory holds is not asked of
    its .deltawire-state.json, which is written when the engines serve again."""
    is_patch = update["kind"] == "patch"
    if {is_patch} != {update["patch"] is not None, update["from_version"] is not None}:
        raise ValueError(f"kind {update['kind']} from {update['from_version']}")
    if is_patch and not os.access(update["patch"], os.R_OK):
        raise ValueError("no such patch")


def report(update):
    """Adds the update to the file DW_TEST_UPDATES, then does what the test asks for:
    wait while FILE.hold is there, and fail once for FILE.refuse."""
    path = os.environ.get("DW_TEST_UPDATES")
    if path is None:
        return
    with open(path, "a") as f:
        f.write(json.dumps(update) + "\n")
    deadline = time.monotonic() + 120
    while os.path.exists(path + ".hold") and time.monotonic() < deadline:
        time.sleep(0.02)
    if os.path.exists(path + ".refuse"):
        os.unlink(path + ".refuse")
        raise RuntimeError("refused, as the test wants")
