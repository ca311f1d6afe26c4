"""The stores of the rounds: a directory, or a prefix of a bucket (DW_TEST_STORE)."""

import json
import os
import re
import shutil
import sys
import urllib.error
import urllib.request
import uuid

import damage

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../servers"))
from s3_request import signed  # noqa: E402


class Store:
    def json_of(self, key):
        try:
            return json.loads(self.read(key) or b"")
        except ValueError:
            return {}

    def label(self, version):
        """The step that a version's commit names; None if it cannot be read."""
        commit = self.json_of(f"commits/{version:020}.json")
        return (commit.get("step") or "0") if commit else None

    def newest(self):
        """The newest version in the store."""
        commits = [x for x in self.keys() if re.fullmatch(r"commits/\d{20}\.json", x)]
        return max((int(x[8:28]) for x in commits), default=-1)

    def floor(self):
        """The lowest version that is kept."""
        return self.json_of("floor.json").get("version", 0)


class DirStore(Store):
    can_go_away = True
    kinds = damage.KINDS

    def __init__(self, root):
        self.path = f"{root}/store"
        self.url = f"file://{self.path}"
        self.away = f"{root}/away"

    def read(self, key):
        return damage.content(f"{self.path}/{key}")

    def keys(self):
        return [os.path.relpath(x, self.path) for x in damage.files_below(self.path)]

    def damage(self, key, kind, rng, others, outside, older):
        older = f"{older}/store/{key}" if older else None
        others = [f"{self.path}/{x}" for x in others]
        return damage.Damage(f"{self.path}/{key}", kind, rng, others, outside,
                             older if older and os.path.isfile(older) else None)  # fmt: skip

    def go_away(self, leaves_mount_point):
        os.rename(self.path, self.away)
        if leaves_mount_point:
            os.mkdir(self.path)

    def come_back(self, older=None):
        """Restores it, or keeps the older copy."""
        shutil.rmtree(self.path, ignore_errors=True)
        if older:
            shutil.copytree(f"{older}/store", self.path, symlinks=True)
        else:
            os.rename(self.away, self.path)

    def remove(self):
        pass  # it is below the round's directory


class BucketStore(Store):
    """A prefix of a bucket on the server DW_TEST_S3_ENDPOINT."""

    can_go_away = False
    kinds = [*damage.IN_PLACE, damage.replace_by_other, damage.remove]

    def __init__(self, root, url):
        self.scratch = f"{root}/object"
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        self.prefix = f"{prefix}/{uuid.uuid4().hex}"
        self.bucket = f"{os.environ['DW_TEST_S3_ENDPOINT']}/{bucket}"
        self.url = f"s3://{bucket}/{self.prefix}"

    def ask(self, method, url, body=b""):
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with direct.open(signed(method, url, body), timeout=300) as reply:
                return reply.read()
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise

    def read(self, key):
        return self.ask("GET", f"{self.bucket}/{self.prefix}/{key}")

    def write(self, key, body):
        if body is None:
            self.ask("DELETE", f"{self.bucket}/{self.prefix}/{key}")
        else:
            self.ask("PUT", f"{self.bucket}/{self.prefix}/{key}", body)

    def keys(self):
        escaped = (self.prefix + "/").replace("/", "%2F")
        listed = self.ask("GET", f"{self.bucket}?list-type=2&prefix={escaped}").decode()
        names = re.findall("<Key>([^<]*)</Key>", listed)
        return [x.removeprefix(self.prefix + "/") for x in names]

    def damage(self, key, kind, rng, others, outside, _older):
        return ObjectDamage(self, key, kind, rng, others, outside)

    def remove(self):
        for key in self.keys():
            self.write(key, None)


class ObjectDamage:
    """Like damage.Damage for an object: damages a file, which then replaces the object."""

    def __init__(self, store, key, kind, rng, others, outside):
        self.store, self.key, self.kind = store, key, kind.__name__
        self.before = store.read(key)
        spare = [f"{outside}-other"]
        for path, body in ((store.scratch, self.before), (spare[0], store.read(others[0]))):
            with open(path, "wb") as f:
                f.write(body or b"")
        kind(store.scratch, rng, spare, outside)
        self.after = damage.content(store.scratch)
        store.write(key, self.after)

    def changed(self):
        return self.before != self.after

    def outside_was_written(self):
        return False

    def is_still_there(self):
        return self.store.read(self.key) == self.after

    def undo(self):
        if self.is_still_there():
            self.store.write(self.key, self.before)
