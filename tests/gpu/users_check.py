"""Random sequences of what users do to models on a GPU (tests/python/users.py), for as long as
LIMIT seconds (20), from SEED (1) on. `users_check.py cuda`: scripts/test-gpu.sh; or `cpu`;
with the package on PYTHONPATH. Exit status 77: there is no GPU or no PyTorch."""
import os
import pathlib
import shutil
import sys
import tempfile
import time
import traceback

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cuda"
try:
    import torch
except ImportError:
    print("users_check: skipped, because there is no PyTorch")
    sys.exit(77)
if DEVICE == "cuda" and not torch.cuda.is_available():
    print("users_check: skipped, because PyTorch sees no GPU")
    sys.exit(77)

sys.path.append(str(pathlib.Path(__file__).parents[1] / "python"))
import users  # noqa: E402

MOST_FAILURES = 30


def main():
    if DEVICE == "cuda":  # or the weights would be copied to the host
        assert users.deltawire.device_fault("cuda:0") is None, users.deltawire.device_fault("cuda:0")
    end = time.monotonic() + float(os.environ.get("LIMIT", 20))
    first = int(os.environ.get("SEED", 1)) * 1_000_000
    n = failed = 0
    while time.monotonic() < end and failed < MOST_FAILURES:
        directory = tempfile.mkdtemp(prefix="users-check-")
        try:
            users.check(f"{directory}/stream", first + n, DEVICE)
        except AssertionError:
            failed += 1
            traceback.print_exc()
        n += 1
        shutil.rmtree(directory, ignore_errors=True)
    print(f"users_check: {n} sequences on {DEVICE}, {failed} failed", flush=True)
    return failed or not n


if __name__ == "__main__":
    sys.exit(bool(main()))
