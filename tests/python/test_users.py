"""Random sequences of what users do to models (users.py).

SEQUENCES and SEED are environment variables: `make soak` runs many more sequences than
`make test`."""
import os

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed (DW_TEST_TORCH=0)")

import users  # noqa: E402

SEQUENCES = int(os.environ.get("SEQUENCES", 200))
SEED = int(os.environ.get("SEED", 1))


def test_users(tmp_path):
    if SEQUENCES > 1000:  # what it imports takes longer than all else in `make test`
        users.ACTIONS.append(users.World.compiled)
    for i in range(SEQUENCES):
        users.check(tmp_path / str(i), SEED * 1_000_000 + i)
