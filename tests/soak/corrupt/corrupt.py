#!/usr/bin/env python3
# labels: slow
"""The corruption campaign: rounds of publishing and following with one damage each.

A round makes a stream, a publisher and some followers, publishes some versions, damages one
thing, goes on, and judges: whoever reports a version has its weights bit for bit, or there is a
clear refusal; and the stream can be continued as documented. See judge() for the rules.

    ROUNDS=n    how many (40)
    SEED=n      repeats the choices of a run; each round prints its own
    ONLY=seed   one round, with a full log
    KEEP=1      go on after a failed round, and count
"""

import collections
import os
import random
import re
import shutil
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import damage  # noqa: E402
from actors import (  # noqa: E402
    DEADLINE,
    CommandPublisher,
    Fault,
    FollowFollower,
    LiveFollower,
    LivePublisher,
    Outcome,
    PullFollower,
    call,
    deltawire,
)
from store import BucketStore, DirStore  # noqa: E402
from truth import Truth  # noqa: E402

SWEEP = 3  # versions within which damage in memory must be noticed


class World:
    """One stream, its publisher and its followers."""

    def __init__(self, seed, root, talks):
        self.rng = rng = random.Random(seed)
        self.root, self.talks, self.log = root, talks, []
        self.home = f"{root}/home"
        bucket = os.environ.get("DW_TEST_STORE")
        self.store = BucketStore(root, bucket) if bucket else DirStore(root)
        self.url = self.store.url
        for name in ("home", "ckpt", "outside"):
            os.mkdir(f"{root}/{name}")
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("XDG_")}
        self.env.update(HOME=self.home, TMPDIR=root)
        if bucket:
            self.env["AWS_ENDPOINT_URL"] = os.environ["DW_TEST_S3_ENDPOINT"]
        self.key = None
        if rng.random() < 0.3:
            self.key = f"{root}/key"
            deltawire(self, "keygen", self.key, "--quiet")
        self.truth = Truth(random.Random(seed), f"{root}/ckpt", large=rng.random() < 0.1)
        self.rewound = False  # the store is an older copy of itself
        self.replaced = False  # the newest copy is still kept
        self.older = ""  # early copies of all directories
        self.what = "nothing"
        self.hit = []  # the actors whose own files were damaged
        self.repaired = False  # by `deltawire repair`
        self.was_running = False  # a publisher, when its files were damaged
        self.killing = False  # an actor that ends now was killed
        self.running = None  # the newest process of the command
        self.labels = collections.defaultdict(set)  # of versions that were acknowledged
        self.head = -1
        self.step = 0
        self.publisher = rng.choice([CommandPublisher, LivePublisher, LivePublisher])(self)
        kinds = [PullFollower, FollowFollower, LiveFollower]
        chosen = rng.sample(kinds, rng.choice([1, 2, 2]))
        self.followers = [k(self, f"f{i}") for i, k in enumerate(chosen)]

    def say(self, text):
        self.log.append(text)
        if self.talks:
            print("   ", text, flush=True)

    def note(self, version, label):
        self.labels[version].add(label)
        self.head = version if self.rewound else max(self.head, version)

    # ---- what happens ----

    def publish(self, torn=False):
        """The next step; whether it was committed."""
        step, more = self.step, {}
        if torn:
            return self.publish_torn()
        outcome = self.publisher.publish(step, **more)
        return self.published(outcome, str(step))

    def published(self, outcome, label):
        if outcome.ok:
            if outcome.version is None or outcome.version < 0:
                raise Fault(f"publish: success, but no version: {outcome}")
            self.note(outcome.version, label)
        self.step += 1
        return outcome

    def publish_torn(self):
        """Two steps are written in turns while one is published."""
        a, b = self.step, self.step + 1
        self.step += 1
        if isinstance(self.publisher, LivePublisher):
            return self.published(self.publisher.publish(a, torn_with=b), f"{a}~{b}")
        path, stop = f"{self.root}/ckpt/torn", threading.Event()
        os.makedirs(path, exist_ok=True)
        file, truncates = f"{path}/model.safetensors", self.rng.random() < 0.3
        states = [self.truth.file(a), self.truth.file(b)]
        with open(file, "wb") as f:
            f.write(states[0])

        def rewrite():
            while not stop.is_set():
                for state in states:
                    with open(file, "wb" if truncates else "r+b", buffering=0) as f:
                        for at in range(0, len(state), 8192):
                            f.write(state[at : at + 8192])

        thread = threading.Thread(target=rewrite)
        thread.start()
        try:
            outcome = self.publisher.publish(f"{a}~{b}", ckpt=path)
        finally:
            stop.set()
            thread.join()
        return self.published(outcome, f"{a}~{b}")

    # ---- the rules ----

    def holds(self, follower, version):
        """Whether the follower's weights are that version's."""
        data = follower.weights()
        labels = set(self.labels[version])
        if not labels and self.store.label(version):
            labels.add(self.store.label(version))  # committed, but not acknowledged
        return data is not None and any(self.truth.is_label(data, x) for x in labels)

    def check_served(self, follower):
        """The directory that an engine was asked to load has the announced version."""
        version, data = follower.loaded()
        if version is not None and self.labels[version]:
            if not any(self.truth.is_label(data, x) for x in self.labels[version]):
                raise Fault(f"the engine of {follower.name} serves wrong weights as {version}")

    def sync(self, follower, victim, wrong_is_known=False):
        """Makes the follower go to the newest version, and judges its weights. VICTIM: its own
        weights were damaged, so only `verify` must find it."""
        outcome = follower.sync(self.store.newest() if self.rewound else self.head)
        if outcome.ok and outcome.version is not None and outcome.version > self.head:
            self.note(outcome.version, self.store.label(outcome.version) or "?")
        # verify and status find that the newest commit is lost; followers never saw it
        is_lost = self.store.newest() < self.head
        if outcome.ok and outcome.version != self.head and not self.rewound and not is_lost:
            raise Fault(f"{follower.name}: says {outcome}, but the newest version is {self.head}")
        claim = follower.claim()
        if outcome.ok and claim != outcome.version:
            raise Fault(f"{follower.name}: says {outcome}, its directory says {claim}")
        # an engine may have loaded a directory while somebody replaced it: then the follower
        # must be in error, and not ready
        if follower not in self.hit and not wrong_is_known and outcome.ok:
            self.check_served(follower)
        if claim is None or self.holds(follower, claim) or wrong_is_known:
            return outcome
        if victim and not follower.verify():
            return Outcome(False, claim, f"verify {follower.name} finds the damage")
        if victim and self.holds(follower, claim):
            return outcome  # it healed meanwhile
        raise Fault(f"{follower.name}: has wrong weights, and says that they are version {claim}"
                    f" ({outcome})")  # fmt: skip


# ---- the damages ---------------------------------------------------------------------


def choose(names, rng):
    """One of NAMES: chooses a kind of files first, because there are many commits but one hint."""
    groups = collections.defaultdict(list)
    for name in sorted(names):
        first, _, rest = name.partition("/")
        groups[first if rest else first[:4] + os.path.splitext(first)[1]].append(name)
    return rng.choice(groups[rng.choice(sorted(groups))])


def damage_file(world, root, kinds=damage.KINDS):
    """Damages one file below ROOT, or an object of the store; None if there is none."""
    rng = random.Random(world.rng.random())  # its own: files differ from run to run
    while True:
        try:
            return try_to_damage(world, root, rng, kinds)
        except FileNotFoundError:
            pass  # it is gone meanwhile


def try_to_damage(world, root, rng, kinds):
    store = world.store if root is None else None
    names = store.keys() if store else [os.path.relpath(x, root) for x in damage.files_below(root)]
    if not names:
        return None
    name = choose(names, rng)
    others = [x for x in names if x != name] or [name]
    rng.shuffle(others)
    kind = rng.choice(store.kinds if store else kinds)
    older = world.older if rng.random() < 0.15 else None
    outside = f"{world.root}/outside/file"
    if store:
        done = store.damage(name, kind, rng, others, outside, older)
        world.what = f"{done.kind} store/{name}"
        done.key = name
    else:
        path = f"{root}/{name}"
        older = older + path[len(world.root) :] if older else None
        others = [f"{root}/{x}" for x in others]
        done = damage.Damage(path, kind, rng, others, outside,
                             older if older and os.path.isfile(older) else None)  # fmt: skip
        world.what = f"{done.kind} {path[len(world.root) + 1 :]}"
    return done


def flip_baseline_in_memory(world):
    """Flips a bit of the baseline in a trainer's memory."""
    live = world.publisher.process
    pid, weights = live.process.pid, live.ask("where").version
    state = world.truth.state(world.step - 1)
    piece = state[len(state) // 2 :][:64]
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "r+b", buffering=0) as mem:
        spots = []
        for line in maps:
            span, rights = line.split()[:2]
            low, high = (int(x, 16) for x in span.split("-"))
            if not rights.startswith("rw") or "[v" in line or high - low > 1 << 28:
                continue
            try:
                mem.seek(low)
                block = mem.read(high - low)
            except OSError:
                continue
            at = block.find(piece)
            while at >= 0:
                if not weights <= low + at < weights + len(state):  # the trainer's own
                    spots.append(low + at)
                at = block.find(piece, at + 1)
        if not spots:
            return False
        spot = world.rng.choice(spots)
        mem.seek(spot)
        byte = mem.read(1)[0] ^ 1 << world.rng.randrange(8)
        mem.seek(spot)
        mem.write(bytes([byte]))
    return True


# ---- a round -------------------------------------------------------------------------


def store_goes_away(world):
    """An unmounted store: publishing into the empty mount point must not succeed."""
    world.what = "the store goes away and comes back"
    starts_anew = not getattr(world.publisher, "process", None)
    world.store.go_away(leaves_mount_point=world.rng.random() < 0.5)
    is_other = False  # a stream was made in the empty mount point
    for _ in range(world.rng.choice([1, 2])):
        outcome = world.publisher.publish(world.step)
        is_other = is_other or outcome.ok
        # a process that starts now cannot know that there was a stream, and makes one
        if outcome.ok and not (starts_anew and outcome.version <= 2):
            raise Fault(f"published version {outcome.version} into a store that is away")
        world.step += 1
    for follower in world.followers:
        if not isinstance(follower, FollowFollower):
            outcome = follower.sync(world.head)  # "nothing new" is also right
            if outcome.ok and not is_other and not world.holds(follower, outcome.version):
                raise Fault(f"{follower.name}: {outcome}, but the store is away")
    for follower in world.followers:
        if is_other and isinstance(follower, LiveFollower):
            follower.stop()  # it may hold versions of the other stream
    if world.rng.random() < 0.4:
        world.what = "the store comes back as an older copy"
        world.rewound = world.replaced = True
    world.store.come_back(world.older if world.replaced else None)


def do_damage(world):
    """Does one damage. Returns the Damage if it was to a file, and the actors that it hit."""
    rng, publisher = world.rng, world.publisher
    choice = rng.random()
    if choice < 0.12 and world.store.can_go_away:
        store_goes_away(world)
        return None, []
    if choice < 0.22:
        world.what = "torn weights"
        for _ in range(2):
            world.publish(torn=True)
        return None, []
    live = [x for x in world.followers if isinstance(x, LiveFollower) and x.process]
    if choice < 0.27 and live:
        world.what = f"a bit of {live[0].name}'s memory flips"
        live[0].flip()
        return None, live[:1]
    if choice < 0.37 and isinstance(publisher, LivePublisher) and publisher.process:
        if flip_baseline_in_memory(world):
            world.what = "a bit of the baseline in memory flips"
            return None, [publisher]
    dirs = [x for x in world.followers if not isinstance(x, LiveFollower)]
    if choice < 0.43 and dirs:
        return None, [replace_directory(world, rng.choice(dirs))]
    running = [x for x in world.followers if isinstance(x, FollowFollower) and x.process]
    if choice < 0.6 and running:
        follower = running[0]
        world.was_running = True
        do = lambda: damage_file(world, follower.dir, damage.HEALED)  # noqa: E731
        return while_it_publishes(world, do) if rng.random() < 0.5 else do(), [follower]
    owners = [None, None] + [x for x in [publisher, *world.followers] if x.roots]
    owner = rng.choice(owners)
    root = rng.choice(owner.roots) if owner else None  # None: the store
    world.was_running = isinstance(publisher, LivePublisher) and publisher.process is not None
    if rng.random() < 0.3:
        world.was_running = True
        done = while_it_publishes(world, lambda: damage_file(world, root))
    else:
        done = damage_file(world, root)
    return done, [owner] if owner else []


def while_it_publishes(world, do):
    """Calls DO at some instant of a publish; in some rounds the publisher is killed."""
    failures = []

    def publish():
        try:
            world.publish()
        except Fault as fault:
            if not world.killing:
                failures.append(fault)

    thread = threading.Thread(target=publish)
    thread.start()
    time.sleep(world.rng.random() * 0.02)
    done = do()
    if world.rng.random() < 0.3:
        world.killing = True
        world.publisher.kill()
    thread.join()
    world.killing = False
    if failures:
        raise Fault(f"{world.what}, during a publish: {failures[0]}")
    return done


def replace_directory(world, follower):
    """Removes a follower's directory, or replaces it with an older copy."""
    older = world.older + follower.dir[len(world.root) :]
    if world.rng.random() < 0.5 and os.path.isdir(older):
        world.what = f"{follower.name} is replaced by an older copy"
        os.rename(follower.dir, f"{world.root}/outside/dir")
        shutil.copytree(older, follower.dir, symlinks=True)
    else:
        world.what = f"{follower.name} is moved away"
        os.rename(follower.dir, f"{world.root}/outside/dir")
    return follower


def play(world):
    rng = world.rng
    for turn in range(rng.choice([3, 4, 5])):
        outcome = world.publish()
        if not outcome.ok:
            raise Fault(f"publish before any damage: {outcome}")
        for follower in world.followers:
            if turn == 0 or rng.random() < 0.5:
                world.sync(follower, False)
        if turn == 1:
            world.older = f"{world.root}/older"
            copy_world(world)
    for actor in (world.publisher, *world.followers):
        chance = rng.random()
        if chance < 0.2:
            actor.stop()
        elif chance < 0.4:
            actor.kill()
    done, hit = do_damage(world)
    world.hit = hit if done else []
    world.say(f"DAMAGE: {world.what}")
    go_on(world, done, hit)
    judge(world, done, hit)


def copy_world(world):
    """Copies all directories, like a backup that runs at the same time."""
    os.mkdir(world.older)
    for name in os.listdir(world.root):
        path = f"{world.root}/{name}"
        if name in ("older", "ckpt", "outside") or not os.path.isdir(path):
            continue
        try:
            shutil.copytree(path, f"{world.older}/{name}", symlinks=True)
        except (shutil.Error, FileNotFoundError):
            pass  # some files, or the directory, are gone meanwhile


def go_on(world, done, hit):
    """Some more versions. Refusals are fine here; wrong weights are not."""
    rng = world.rng
    swept = rotten(world, done, hit) or (hit and done is None)
    for _ in range(SWEEP + 1 if swept else rng.choice([1, 2])):
        world.publish()
        if rng.random() < 0.15:
            world.publisher.kill()
        for follower in world.followers:
            if rng.random() < 0.7:
                wrong = rotten(world, done, hit) or \
                    (follower in hit and isinstance(follower, LiveFollower))  # fmt: skip
                world.sync(follower, follower in hit, wrong_is_known=wrong)
    if rng.random() < 0.3:
        deltawire(world, "compact", world.url, "--anchor", "--quiet", *trust(world, True))
    if rng.random() < 0.3:
        deltawire(world, "gc", world.url, "--keep", "1", "--quiet", *trust(world))


def rotten(world, done, hit):
    """Whether the baseline of a running publisher changed: a sweep finds that, and versions until
    then may be wrong."""
    return world.publisher in hit and (done is None or world.was_running)


def trust(world, signs=False):
    if not world.key:
        return []
    return ["--trust", f"{world.key}.pub"] + (["--sign-key", world.key] if signs else [])


def judge(world, done, hit):
    """In the end all are equal, only with the help that the refusals ask for: damaged objects are
    restored from a copy, a trainer is restarted. A follower's directory heals by itself, unless
    somebody put other files there: then it is removed and pulled again."""
    if done and done.outside_was_written():
        raise Fault(f"somebody wrote through a link ({world.what})")
    in_store = done if done and not hit else None
    if in_store and in_store.changed() and in_store.is_still_there():
        finds_damage(world, in_store)
    outcome = world.publish()
    if not outcome.ok:
        world.publisher.stop()
        outcome = world.publish()
    if outcome.ok:
        world.replaced = False  # it continues with the older copy
    elif in_store or world.replaced:
        restore(world, in_store)
        world.publisher.stop()
        outcome = world.publish()
    if not outcome.ok and "deltawire repair" in outcome.text:
        world.publisher.stop()
        outcome = repair(world)
    other = re.search(r"name its id with --stream: ([0-9a-f]{32})", outcome.text or "")
    if not outcome.ok and other and isinstance(world.publisher, CommandPublisher):
        world.publisher.options += ["--stream", other[1]]
        outcome = world.publish()
    if not outcome.ok and world.publisher in hit and named(outcome, world.publisher.roots):
        world.publisher.stop()
        for root in world.publisher.roots:
            shutil.rmtree(root, ignore_errors=True)
        outcome = world.publish()
    if not outcome.ok:
        raise Fault(f"the stream cannot be continued: {outcome}")
    for follower in [*world.followers, PullFollower(world, "fresh")]:
        outcome = world.sync(follower, follower in hit)
        if not outcome.ok and (in_store or world.replaced):
            restore(world, in_store)
            outcome = world.sync(follower, follower in hit)
        if not outcome.ok and follower in hit and heals(world, follower, done):
            outcome = world.sync(follower, False)
        if not outcome.ok:
            follower.stop()
            if follower in hit or world.rewound:
                follower.remove()
            outcome = world.sync(follower, False)
        if not outcome.ok:
            raise Fault(f"{follower.name} cannot go on: {outcome}")
        follower.stop()
    restore(world, in_store)
    code, _, error = deltawire(world, "verify", world.url, "--quiet", *trust(world))
    if code != 0 and not world.repaired:  # else it still names the bad versions
        raise Fault(f"verify in the end: {error}")
    world.publisher.stop()


def heals(world, follower, done):
    """Whether the damage must be gone by itself: it is in a follower's directory, and nobody put
    other files there. Damage that no version touches is found when the follower starts again."""
    if not done or done.kind not in [x.__name__ for x in damage.HEALED] or world.rewound:
        return False
    is_seen = done.kind == "flip_many" and done.path.endswith("/model.safetensors")
    if not (is_seen and getattr(follower, "process", None)):
        follower.stop()
    until = time.monotonic() + DEADLINE
    outcome = world.sync(follower, True)
    while not outcome.ok and time.monotonic() < until and isinstance(follower, FollowFollower):
        time.sleep(0.05)
        outcome = world.sync(follower, True)
    if not outcome.ok:
        raise Fault(f"{follower.name} does not heal ({world.what}): {outcome}")
    return True


def repair(world):
    """Does what a refusal asks for: one more version with the whole model, from a checkpoint."""
    step = world.step
    sign = ["--sign-key", world.key] if world.key else []
    outcome = call(world, "repair", world.url, world.truth.checkpoint(step), "--step", str(step), *sign)
    world.repaired = True
    return world.published(outcome, str(step))


def named(outcome, roots):
    return any(root in outcome.text for root in roots)


def restore(world, in_store):
    """Acts like an operator with a copy of the store."""
    if in_store:
        in_store.undo()
    if world.replaced:
        world.store.come_back()
        world.replaced = False


# Objects that a stream does not need: hints and shortcuts.
HINTS = ("latest.json", "followers/", "probe/", "receipts/", ".deltawire~")
SPARE = ("ways/", "epochs/", "floor.json")


def finds_damage(world, done):
    """`verify URL` must find the damage in the store, unless the object is not needed."""
    code, _, _ = deltawire(world, "verify", world.url, "--quiet", *trust(world))
    spare = done.key.startswith(HINTS) or (done.after is None and done.key.startswith(SPARE))
    version = re.search(r"/(\d{20})", done.key)
    collected = version and int(version[1]) < world.store.floor()
    if code == 0 and not spare and not collected and done.is_still_there():
        raise Fault(f"verify finds nothing, but {world.what} was done")


def run_round(seed, talks):
    """None, or the fault."""
    where = os.environ.get("SOAK_ROOT") or ("/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    root = tempfile.mkdtemp(prefix="deltawire-corrupt-", dir=where)
    world = None
    try:
        world = World(seed, root, talks)
        play(world)
        return world.what, None, world
    except Fault as fault:
        return world.what if world else "", str(fault), world
    finally:
        if world:
            for actor in (world.publisher, *world.followers):
                actor.kill()
            world.store.remove()
        shutil.rmtree(root, ignore_errors=True)


def main():
    rounds = int(os.environ.get("ROUNDS") or 40)
    seed = int(os.environ.get("SEED") or random.SystemRandom().randrange(1 << 32))
    only = os.environ.get("ONLY")
    if only:
        what, fault, _ = run_round(int(only), True)
        print(f"{what}: {fault or 'fine'}")
        return 1 if fault else 0
    print(f"SEED={seed}")
    failed, n, begun = 0, 0, time.monotonic()
    while n < rounds:
        what, fault, world = run_round(seed + n, False)
        n += 1
        if not fault:
            continue
        failed += 1
        print(f"FAILED: {what}: {fault}\n    to repeat: ONLY={seed + n - 1}", flush=True)
        if not os.environ.get("KEEP"):
            print("\n".join("    " + x for x in (world.log[-25:] if world else [])))
            break
    took = time.monotonic() - begun
    print(f"{n} rounds, {failed} failed, {took:.0f} s ({took / max(n, 1):.2f} s a round)")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
