"""deltawire.torch and GPUs, as far as a machine without one can tell. Real ones: tests/gpu."""
import logging

import pytest
import torch

import deltawire as dw
import deltawire.torch
from deltawire import _devices

GPUS = {torch.device("cuda:0"), torch.device("cuda:1")}


def test_which_devices_are_used(monkeypatch, caplog):
    monkeypatch.setattr(dw._core, "device_fault",
                        lambda name: None if name == "cuda:0" else "it has no kernels")
    caplog.set_level(logging.WARNING, "deltawire")
    assert _devices.usable(set(), None, {}) == set()
    assert _devices.usable(GPUS, "host", {}) == {torch.device("cuda:0")}
    assert not caplog.records  # nobody asked for more
    caplog.set_level(logging.INFO, "deltawire")
    _devices.usable(GPUS, "host", {})
    (record,) = caplog.records
    assert "cuda:1" in record.message and record.levelname == "INFO"
    caplog.clear()
    assert _devices.usable(GPUS, None, {}) == {torch.device("cuda:0")}
    (record,) = caplog.records
    assert "cuda:1" in record.message and "it has no kernels" in record.message
    with pytest.raises(ValueError, match="cuda:1 cannot be used: it has no kernels"):
        _devices.usable(GPUS, "device", {})


@pytest.mark.parametrize("option", ["baseline_dir", "quantize"])
def test_options_that_need_the_host(monkeypatch, caplog, option):
    monkeypatch.setattr(dw._core, "device_fault", lambda name: None)
    caplog.set_level(logging.WARNING, "deltawire")
    assert _devices.usable(GPUS, None, {option: "x"}) == set()
    assert len(caplog.records) == 2 and option in caplog.records[0].message
    with pytest.raises(ValueError, match=option):
        _devices.usable(GPUS, "device", {option: "x"})
    assert _devices.usable(GPUS, "host", {option: "x"}) == set()
    assert len(caplog.records) == 2
    assert _devices.usable(GPUS, "device", {option: None}) == GPUS


def test_a_model_on_the_host(url, caplog):
    model = torch.nn.Linear(4, 4)
    with pytest.raises(ValueError, match="'device' or 'host'"):
        deltawire.torch.Publisher(model, url=url, baseline="gpu")
    for baseline in (None, "device", "host"):
        with deltawire.torch.Publisher(model, url=url, baseline=baseline) as publisher:
            assert publisher.publish()
    assert not caplog.records
