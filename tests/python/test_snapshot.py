import numpy as np
import pytest

import deltawire as dw


def test_readers_see_whole_versions(url, tmp_path):
    weights = {"w": np.zeros(50000, np.float32)}
    with (dw.Publisher(url, weights) as publisher,
          dw.Follower(url, into=tmp_path / "d", reader_wait=0.2) as follower):
        with pytest.raises(dw.NotFound):
            dw.Snapshot(tmp_path / "d")
        follower.sync()
        with dw.Snapshot(tmp_path / "d") as snapshot:
            assert snapshot.version == 0
            for version in range(1, 4):
                weights["w"][:] = version
                publisher.wait(publisher.publish())
                follower.sync()
                view = snapshot.hold()
                assert view.version == version and view.state == dw.digest(weights).state
                assert dw.digest(view.tensors).state == view.state
                snapshot.release()
            kept = view.tensors["w"]
            seen = snapshot.look()
            assert float(np.asarray(seen.tensors["w"])[7]) == 3 and snapshot.unchanged()
            weights["w"][:] = 9
            publisher.wait(publisher.publish())
            follower.sync()
            assert not snapshot.unchanged()
            assert snapshot.hold().version == 4
            # while it is held it is not written
            weights["w"][:] = 10
            publisher.wait(publisher.publish())
            with pytest.raises(dw.Unavailable):
                follower.sync()
            with dw.Snapshot(tmp_path / "d") as other:
                assert other.version == 4
            snapshot.release()
            assert follower.sync().version == 5
        with pytest.raises(dw.Invalid):
            snapshot.hold()
        np.asarray(kept).sum()  # its memory is still there


def test_what_is_no_snapshot(tmp_path):
    with pytest.raises(dw.Error):
        dw.Snapshot(tmp_path / "none")
