"""vLLM, TRL and PyTorch ask name servers about this machine's addresses, which the check of
tests/conftest.py would count. Where these tests have a network of their own, it has only loopback,
so they reach nobody."""
import pytest


@pytest.fixture(autouse=True)
def stays_on_this_machine():
    yield
