"""The native part. Every handle has close() and is a context manager. A call on a handle that
is closed, or that was made before a fork, raises Invalid. Threads may share a handle: its
calls run one after the other. Calls that take long release the GIL.

A version is None if it does not exist yet. A digest is 16 hexadecimal digits, as the
command `deltawire` prints it. A timeout is in seconds; None means no limit. `threads` is the
number of threads; 0 means one for each core."""
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias, final

from typing_extensions import Buffer, Self

__version__: Final[str]

_Path: TypeAlias = str | bytes | PathLike[str] | PathLike[bytes]
_Progress: TypeAlias = Callable[[int, int], object]
"""Called now and then with the bytes done and the total of bytes. An exception stops the
work, and the call raises it."""

class _SupportsDLPack(Protocol):
    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

_Array: TypeAlias = (
    Buffer | _SupportsDLPack | tuple[Buffer, str] | tuple[Buffer, str, Sequence[int]]
)
"""The memory of a tensor, C-contiguous: a buffer, a DLPack exporter (memory of the CPU or of a CUDA
device), or a buffer with its element type ('BF16', 'F8_E4M3', ...) and a shape."""
_Tensors: TypeAlias = Mapping[str, _Array]

# ---- errors ---------------------------------------------------------------------------

class Error(Exception):
    code: str
    """'not_found', 'corrupt', 'stale', ...: says what the caller can do."""
    where: str
    """The file, tensor or object; may be empty."""
    text: str

class IoError(Error, OSError): ...
class NotFound(Error): ...
class Corrupt(Error): ...
class Stale(Error): ...
class Mismatch(Error): ...
class Unsupported(Error): ...
class Invalid(Error, ValueError): ...
class Conflict(Error): ...
class Cancelled(Error): ...
class Unavailable(Error): ...
class Denied(Error): ...
class Untrusted(Error): ...

# ---- tensors and checkpoints ----------------------------------------------------------

@final
class Tensor:
    """A tensor in memory that another object owns. The tensor keeps that object alive. It is
    a buffer (types that buffers do not have become unsigned numbers of the same width) and a
    DLPack exporter (`torch.from_dlpack(tensor)` copies nothing)."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def readonly(self) -> bool: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __dlpack__(
        self,
        *,
        stream: None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

@final
class Checkpoint(Mapping[str, Tensor]):
    """A safetensors file, an index of shards, or a directory with one of them, mapped. Its
    tensors keep the mapping alive, also after close()."""

    def __new__(cls, path: _Path, writable: bool = False) -> Self: ...
    def __getitem__(self, name: str, /) -> Tensor: ...
    def __iter__(self) -> Iterator[str]: ...
    def __len__(self) -> int: ...
    @property
    def files(self) -> list[str]: ...
    def metadata(self, key: str) -> str | None: ...
    def sync(self) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...

def write_checkpoint(
    path: _Path,
    tensors: _Tensors,
    *,
    metadata: Mapping[str, str] | None = None,
    max_shard_bytes: int = 0,
) -> None: ...

class Digests(NamedTuple):
    state: str
    tensors: dict[str, str]

def digest(
    tensors: _Tensors, *, threads: int = 0, progress: _Progress | None = None
) -> Digests: ...
def cast(source: _Tensors, into: _Tensors, *, threads: int = 0) -> None:
    """Rounds F32 to BF16, to the nearest value and halfway to the even one. Copies other
    types. Both sides have the same names and shapes."""

# ---- deltas ---------------------------------------------------------------------------

_Codec: TypeAlias = Literal["class", "gap", "raw"]

class DeltaInfo(NamedTuple):
    codec: _Codec
    trl_layout: int
    has_digests: bool
    base_version: int
    new_version: int
    base_state: str
    new_state: str
    n_model_tensors: int
    n_model_elems: int
    n_changed: int
    n_bytes: int

class DeltaTensor(NamedTuple):
    name: str
    dtype: str
    shape: tuple[int, ...] | None
    n_changed: int
    n_bytes: int

class ApplyReport(NamedTuple):
    already_applied: bool
    recovered: bool
    verified: bool
    n_changed: int
    new_state: str

@final
class Delta:
    """The changes between two versions: made by diff(), or opened from a file or bytes."""

    def __new__(cls, source: _Path | Buffer) -> Self:
        """A str or path is a file; anything else is a buffer, which is copied."""
    @property
    def info(self) -> DeltaInfo: ...
    @property
    def tensors(self) -> list[DeltaTensor]: ...
    def apply(
        self, tensors: _Tensors, *, threads: int = 0, progress: _Progress | None = None
    ) -> None:
        """Proves the result, then writes. If it fails, nothing was written."""
    def verify(
        self, tensors: _Tensors, *, threads: int = 0, progress: _Progress | None = None
    ) -> None: ...
    def apply_to_checkpoint(
        self, path: _Path, *, threads: int = 0, progress: _Progress | None = None
    ) -> ApplyReport: ...
    def save(self, path: _Path) -> None: ...
    def tobytes(self) -> bytes: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...

def diff(
    base: _Tensors,
    new: _Tensors,
    *,
    codec: _Codec = "class",
    trl_layout: int = 3,
    base_version: int = 0,
    new_version: int = 1,
    update_base: bool = False,
    threads: int = 0,
    progress: _Progress | None = None,
) -> Delta: ...

# ---- stores and streams ---------------------------------------------------------------

class StoreCounts(NamedTuple):
    n_requests: int
    n_retries: int
    bytes_read: int
    bytes_written: int

class StoreEntry(NamedTuple):
    key: str
    n_bytes: int
    modified_ms: int

@final
class Store:
    """file:///DIR, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, mem:NAME, a path, or
    hf://buckets/NAMESPACE/NAME/PATH. None and 0 mean the default (store.h)."""

    def __new__(
        cls,
        url: str,
        *,
        endpoint: str | None = None,
        region: str | None = None,
        profile: str | None = None,
        addressing: Literal["path", "host", "auto"] | None = None,
        connections: int = 0,
        part_bytes: int = 0,
        tries: int = 0,
        deadline: float = 0,
        credentials: Callable[[], tuple[Any, ...]] | Any = None,
        anonymous: bool = False,
    ) -> Self:
        """`credentials` is a botocore session, or a function that returns (key, secret,
        token or None, expiry as a datetime, seconds since 1970 or None), for gs:// (token,
        expiry). It is asked at the first request, before the expiry, and after a server
        refused the keys."""
    @property
    def url(self) -> str: ...
    @property
    def counts(self) -> StoreCounts: ...
    def get(
        self, key: str, offset: int = 0, size: int | None = None, *,
        progress: _Progress | None = None,
    ) -> bytes: ...
    def put(
        self, key: str, data: Buffer, *, create: bool = False, progress: _Progress | None = None
    ) -> None: ...
    def list(self, prefix: str = "", after: str | None = None) -> list[StoreEntry]: ...
    def remove(self, key: str) -> None: ...
    def close(self) -> None:
        """Handles that use the store keep it open until they are closed."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...

class VersionSource(NamedTuple):
    stream: str
    version: int
    commit_sha256: str
    """SHA-256 of the commit of that version."""

class VersionInfo(NamedTuple):
    version: int
    content: Literal["delta", "anchor", "base", "fork"]
    epoch: int
    created: str
    step: str
    notes: str
    state: str
    n_changed: int
    n_objects: int
    n_bytes: int
    key: str | None
    """The public key it is signed with."""
    base: str | None
    fork_url: str | None
    fork_version: int | None
    suspect_from: int | None
    """The writer found its baseline damaged: the versions from this one up to the one before
    `version` may not be the trainer's weights."""
    library: str | None
    """The version of deltawire that wrote it; None: not recorded."""
    host: str | None
    """The machine that wrote it; None: not recorded."""
    source: VersionSource | None
    """Of a derived stream: the version that this one was made of."""

class Shortcut(NamedTuple):
    start: int | None
    """None: an anchor."""
    to: int
    n_bytes: int
    n_objects: int

class FollowerInfo(NamedTuple):
    id: str
    version: int | None
    host: str
    status: str
    message: str
    time: str

class FileInfo(NamedTuple):
    n_bytes: int
    sha256: str
    version: int  # that stored these bytes first

class StreamTensor(NamedTuple):
    dtype: str
    shape: tuple[int, ...]

@final
class Stream:
    """The records of a stream. `trust` has public keys, or files of them: if there are any,
    records of other keys are refused. `stream` is the id that the stream must have."""

    def __new__(cls, store: Store | str, *, trust: Iterable[str] = (),
                stream: str | None = None) -> Self: ...
    @property
    def id(self) -> str: ...
    @property
    def tensors(self) -> dict[str, StreamTensor]: ...
    @property
    def quantized(self) -> tuple[str, str] | None:
        """The scheme, and what F32 was rounded to first ("bf16", "none")."""
    @property
    def single_writer(self) -> bool: ...
    @property
    def head(self) -> int | None:
        """Asks the store."""
    @property
    def floor(self) -> int: ...
    def version(self, version: int) -> VersionInfo: ...
    def versions(self, start: int | None = None) -> list[VersionInfo]:
        """From `start`, or the floor, to the head."""
    def shortcuts(self) -> list[Shortcut]:
        """The folds and anchors of the stream."""
    def files(self, version: int | None = None) -> dict[str, FileInfo] | None:
        """The companion files of a version (None: the newest) by name. None if the version
        says nothing about files."""
    def read_file(self, version: int | None, name: str) -> bytes:
        """Fetches a companion file, and checks its size and SHA-256. Raises NotFound if the
        version has no such file."""
    def followers(self) -> list[FollowerInfo]: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...

# ---- publishing -----------------------------------------------------------------------

class PublishReport(NamedTuple):
    version: int
    unchanged: bool
    n_changed: int
    n_bytes: int
    n_objects: int
    state: str
    times: dict[str, float]  # milliseconds from publish() to captured, encoded, ..., committed
    restarted: bool  # the newest version did not decode: this one has an anchor
    suspect_from: int | None  # the versions from this one to `version` - 1 may be wrong
    upkeep_behind: int  # for how many versions a fold or an anchor has been due
    n_merged: int  # earlier publishes that this version covers
    waited_ms: int  # how long these held their callers
    removal_denied: bool  # superseded anchors stay: the store does not let this writer remove
    n_not_finite: int  # changed weights on the host that are infinite or not a number

@final
class Publisher:
    """Publishes tensors from where they are; their memory is held until close(). When this
    returns, the newest version is these weights. On a new stream they are version 0. On an
    existing one they are published if they differ from its newest version."""

    def __new__(
        cls,
        store: Store | str,
        tensors: _Tensors,
        *,
        when_busy: Literal["wait", "skip", "fold"] = "wait",
        base: _Path | None = None,
        base_name: str | None = None,
        fork: Store | str | None = None,
        fork_version: int | None = None,
        baseline_dir: _Path | None = None,
        spool_dir: _Path | None = None,
        fold_every: int = 16,
        anchor_every: int = 0,
        anchor_factor: float = 0.1,
        sign_key: _Path | None = None,
        trust: Iterable[str] = (),
        stream: str | None = None,
        new_key: bool = False,
        single_writer: bool = False,
        max_object_bytes: int = 0,
        max_anchor_bytes: int = 0,
        threads: int = 0,
        step: str | int | None = None,
        notes: str | None = None,
        exit_timeout: float = 30,
        progress: _Progress | None = None,
        as_bf16: Iterable[str] | None = None,
        shards: Iterable[tuple[str, int, _Array]] | None = None,
        rank: int = 0,
        n_ranks: int = 1,
        job: str | None = None,
        rank_timeout: float | None = 600,
        sweep_every: int = 64,
        provenance: bool = True,
        publish_changed: bool = True,
        quantize: Literal["fp8-block", "fp8-row", "int8-row"] | None = None,
        quantize_keep: Iterable[str] | None = None,
        quantize_also: Iterable[str] | None = None,
        quantize_from_f32: bool = False,
        files: _Path | Mapping[str, bytes | _Path] | None = None,
        baseline: Literal["device", "host"] = "device",
        agree: Callable[[memoryview], object] | None = None,
        keep: int | None = None,
        start: str | None = None,
        take_over: bool = False,
    ) -> Self:
        """`files`: the companion files of the next version (config.json, tokenizer files): a
        directory, from which those of the usual names are taken, or a mapping from names to
        bytes or paths. Of several ranks, those of rank 0 count. `base_name` or `base`: version 0 is a checkpoint that followers have; it is not
        uploaded. `fork`: version 0 is a version of another stream. `stream`: the id that the
        stream must have. `new_key`: allow that the newest version is signed by another key.
        `step` and `notes` are those of the version that opening commits.
        `publish_changed=False`: opening commits only version 0. `exit_timeout`: how long the
        end of the interpreter, or of this object, waits for the version in progress before
        it is cancelled. `as_bf16` names tensors in F32 that are published as BF16, rounded
        while they are compared.

        `shards` are the slices of this rank: the tensor's name, the first element
        (row-major), and an array. The tensors themselves may then be `(None, dtype, shape)`.
        `start` is the same on every rank, and another for every start. Ranks wait
        `rank_timeout` for each other, rank 0 twice as long. With shards, opening commits only
        version 0 (is_current()). `agree(numbers)` is needed if ranks share quantised blocks or
        rows: a collective call in which 32-bit numbers below 2^31, in a writable memoryview,
        become the largest over all ranks. It is called in the constructor, publish() and
        is_current(), which all ranks then call in the same order. The whole baseline is compared with the stream within
        `sweep_every` versions; 0: never.

        `provenance=False`: commits do not record the name of this machine and the version
        of deltawire.

        `quantize`: the stream holds the weights as fp8 or int8, with scales. Patterns in
        `quantize_keep` and `quantize_also` change which; `quantize_from_f32` does not round
        F32 to BF16 first.

        `baseline`: where the newest version of tensors on a GPU is kept: in memory of the
        GPU, or in pinned memory of the host, from which it goes to the GPU at each publish
        (docs/PYTHON.md). Experimental."""
    @property
    def stream_id(self) -> str: ...
    @property
    def created(self) -> bool:
        """True if opening committed version 0, False if it resumed a stream with versions. Of
        several ranks, ask rank 0."""
    @property
    def version(self) -> int:
        """The newest version that is committed."""
    @property
    def opening(self) -> PublishReport | None:
        """The report of the version that opening published because the weights differed from
        the newest one; None if it published none."""
    def publish(
        self,
        *,
        step: str | int | None = None,
        notes: str | None = None,
        unchanged: Iterable[str] | None = None,
        files: _Path | Mapping[str, bytes | _Path] | None = None,
        cuda_streams: Mapping[str, int] | None = None,
    ) -> int:
        """Publishes the weights as they are, in the background, and returns a ticket. `files`
        replaces the companion files; otherwise the version has those of the one before. The weights
        must not change until captured(ticket). 0: skipped (`when_busy`). Of several ranks each
        gives the same `step`, a number that goes up: a version is one step on all of them, and
        Invalid is raised without one. `unchanged` names
        tensors that were not written since the last publish that returned a ticket: they are
        not read. `cuda_streams` has the CUDA stream that writes the weights of each device
        ("cuda:0"), as `torch.cuda.Stream.cuda_stream` is; the default stream if it is not named.
        Weights on a device are read after what that stream was given before the call, and what
        it is given after the call waits until they are read."""
    @property
    def ticket(self) -> int:
        """The ticket of the last publish(); 0 if there was none. It is known also if the call was
        interrupted after its work was done."""
    def captured(self, ticket: int | None = None, timeout: float | None = None) -> bool:
        """Whether the weights of the ticket, or of the last one, are read and may change."""
    def wait(self, ticket: int | None = None, timeout: float | None = None) -> PublishReport:
        """Waits until the version of the ticket, or of the last one, is committed. Raises
        TimeoutError if the time is over first. Before the first publish() it returns `opening`,
        or raises Invalid if opening published no weights that differ."""
    def idle(self, timeout: float | None = None) -> bool:
        """Waits until a publish would not wait. Returns False if the time is over first."""
    def drain(self, timeout: float | None = None) -> None:
        """Waits until the folds and anchors that are due are made; raises what went wrong with them.
        A publish does not wait for them, and close() gives them up."""
    def is_current(self) -> bool:
        """Whether the weights are those of the newest version; with shards, those of this
        rank. If it is False on any rank after opening, all ranks publish(). All ranks ask
        together."""
    def cancel(self) -> None:
        """Cancels the version in progress, unless it is being committed."""
    def close(self, timeout: float | None = None) -> None:
        """Waits for the version in progress; cancels it if `timeout` is over first."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...

# ---- following ------------------------------------------------------------------------

class FollowReport(NamedTuple):
    start: int | None
    version: int | None
    n_steps: int
    n_objects: int
    n_bytes: int
    n_changed: int
    fetch_ms: int
    stage_ms: int
    apply_ms: int
    n_files_installed: int  # companion files
    n_files_removed: int
    n_files_kept: int  # not installed, because the user has another file of that name
    times: dict[str, float]  # milliseconds from finding a version to fetched, ..., resumed

@final
class Follower:
    """Brings weights to versions of a stream: a checkpoint directory, or memory, which is
    held until close() and must be writable."""

    def __new__(
        cls,
        store: Store | str,
        *,
        into: _Path | None = None,
        tensors: _Tensors | None = None,
        at: int | None = None,
        base: _Path | None = None,
        spool_dir: _Path | None = None,
        reader_wait: float = 10,
        trust: Iterable[str] = (),
        stream: str | None = None,
        id: str | None = None,
        sweep_every: int = 64,
        threads: int = 0,
        max_ahead_bytes: int = 0,
        empty: bool = False,
        report: bool = True,
        open_timeout: float | None = None,
        widen: bool = False,
        files: bool = True,
    ) -> Self:
        """If there is no stream yet, or the store cannot be reached, this logs a warning and
        waits up to `open_timeout` seconds (None: without limit). Then it raises NotFound or
        Unavailable.

        `report`: `deltawire status` and `serve-status` show this follower's version, under
        `id`. The default id is the name of the machine with a hash of the path of `into` or,
        for tensors, with a number.

        Tensors change only once a version is fetched and proven. If the route begins with an
        anchor, this takes the size of the model in `spool_dir`. `empty`: the tensors hold
        nothing and nobody reads them, so the first version is fetched right into them; until
        it is proven `version` is None.

        `widen`: float32 tensors may follow bfloat16 tensors of the stream. Each weight is
        widened, which is exact. Only for models that nobody trains: a weight that is not the
        stream's counts as damage and is replaced. This takes the size of the bfloat16 model
        in `spool_dir` until close().

        `files`: a directory gets the companion files of the version, such as config.json. The
        user's own files are never replaced."""
    @property
    def version(self) -> int | None: ...
    @property
    def state(self) -> str | None: ...
    @property
    def staged(self) -> int | None:
        """The version that is staged and not finished (finish())."""
    @property
    def update_state(self) -> Literal["staged", "prepared", "applied", "filled"] | None:
        """How far `staged` is; None if nothing is staged. After a call that failed or was
        interrupted this says where to go on. "filled": empty tensors or an empty directory were
        filled while they were staged, and only finish() is left."""
    @property
    def will_fill(self) -> bool:
        """Whether the next stage() writes to `tensors`, which hold nothing."""
    @property
    def staged_path(self) -> str | None: ...
    @property
    def dir(self) -> str | None: ...
    @property
    def totals(self) -> FollowReport: ...
    @property
    def files_kept(self) -> list[str]:
        """The paths of the user's files that are in the place of companion files of the
        version. Remove one to let the next sync() install the version's."""
    def poll(self) -> int | None:
        """The newest version of the stream."""
    def wait(
        self, timeout: float | None = None, max_wait: float = 5, *,
        progress: _Progress | None = None,
    ) -> int | None:
        """Waits until there is a version above that of the weights, and returns it. Returns
        None if the time is over first."""
    def stage(self, goal: int | None = None, *, progress: _Progress | None = None) -> int | None:
        """Fetches and proves the next step to `goal` (None: the newest). Returns the version
        that it leads to."""
    def prepare(self) -> None:
        """Makes the patch of the staged step durable. Readers see nothing yet."""
    def apply(self) -> None:
        """Stores the new values."""
    def finish(self) -> None:
        """Syncs what was applied, reads it back and removes the patch."""
    def sync(self, goal: int | None = None, *, progress: _Progress | None = None) -> FollowReport:
        """stage, prepare, apply and finish until the weights are at `goal`."""
    def move(self, tensors: _Tensors, /) -> None:
        """Goes on with other memory, which must hold the version of the old one, or the version
        that is applied: all of it is read. Raises Stale if it does not, and stays with the old
        memory. If there is no version yet, it may hold anything."""
    def report(self, status: str, message: str | None = None) -> None:
        """Reports your own status. From now until close() only your reports are sent."""
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...

# ---- snapshots ------------------------------------------------------------------------

class SnapshotView(NamedTuple):
    version: int
    state: str
    tensors: dict[str, Tensor]
    """Read-only, in the files that the follower writes."""

@final
class Snapshot:
    """Reads the weights of a directory that a follower updates, without a copy or a reload
    (control.h). Read the tensors of hold() or look() before the next call of either."""

    def __new__(cls, dir: _Path) -> Self: ...
    @property
    def version(self) -> int | None:
        """The version that a read would get now."""
    def hold(self, timeout: float | None = 10) -> SnapshotView:
        """The newest version. The writer does not change it until release()."""
    def release(self) -> None: ...
    def look(self, timeout: float | None = 10) -> SnapshotView:
        """The newest version, which the writer may overwrite. Read it, and discard the data
        if unchanged() is False."""
    def unchanged(self) -> bool: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...

def keygen(path: _Path) -> str:
    """Writes a new secret key and returns the public one."""

def device_fault(name: str) -> str | None:
    """Why tensors of a device such as "cuda:0" cannot be used, or None if they can: there is no
    such device, or this build has no kernels for it."""

# ---- layouts --------------------------------------------------------------------------

_Shapes: TypeAlias = Mapping[str, tuple[str, Sequence[int]]]
"""Element type and shape by name, as Stream.tensors has them."""

class LayoutReport(NamedTuple):
    version: int
    state: str | None
    """The digest of the version, from the patch."""
    reached: str | None
    """The digest after the stores, if `base` was given."""
    n_changed: int
    n_stored: int
    forgotten: list[str]
    """Tensors with changes that are not in the layout: load them again."""

@final
class Layout:
    """The positions of a checkpoint's elements in an engine's own tensors, the targets.
    layout.h describes how they are learnt."""

    def __new__(cls, tensors: _Shapes, targets: _Shapes) -> Self: ...
    @property
    def held(self) -> dict[str, int]:
        """How many positions in targets hold elements of each tensor."""
    @property
    def forgotten(self) -> list[str]: ...
    @property
    def pieces(self) -> int: ...
    def passes(self) -> int: ...
    def spell(self, name: str, number: int, into: _Array, /) -> None: ...
    def learn(self, target: str, passes: Sequence[_Array], /) -> int:
        """Returns how many elements of the target were loaded. Raises Unsupported if the
        layout cannot be learnt."""
    def forget(self, name: str, /) -> None: ...
    def add_sums(self, target: str, /, *, block: int, rows: int, run: int, factor: int) -> None:
        """The target is made of blocks of BLOCK bytes: int8 elements, of which element i belongs
        to row i // RUN % ROWS, and then an int32 for each row, FACTOR times its sum. apply() moves
        the sums too."""
    def end(self) -> None: ...
    def bind(self, targets: _Tensors, /) -> None:
        """Sets the memory of targets, which is held until the next bind(). It may be on a
        device."""
    def compare(self, tensors: _Tensors, *, threads: int = 0) -> dict[str, int]:
        """For each tensor that differs in the targets, how many elements differ."""
    def write(self, tensors: _Tensors, *, threads: int = 0) -> None: ...
    def write_target(self, target: str, tensors: _Tensors, *, threads: int = 0) -> None:
        """The same for one target: needs only its sources and its memory."""
    def sources(self, target: str, /) -> list[str]:
        """The tensors that have elements in a target. Call it after end()."""
    def apply(self, path: _Path, *, base: str | None = None, threads: int = 0) -> LayoutReport:
        """Applies a patch file and reads the values back. Raises Stale, and changes nothing, if
        the weights are not those that the patch starts from."""
    def prepare(self, path: _Path, *, threads: int = 0) -> None:
        """Does all of apply() that changes nothing, so that an engine need not pause for it: for
        targets on a device it computes the positions and copies them there."""
    def store(self, *, base: str | None = None, threads: int = 0) -> LayoutReport:
        """The rest of apply(), once, with the patch that was prepared last. Raises Invalid if a
        bind() or forget() came between. The memory of the patch stays until the next prepare() or
        bind()."""
    def stores(
        self, path: _Path, *, base: str | None = None
    ) -> tuple[LayoutReport, dict[str, tuple[bytearray, bytearray, bytearray]]]:
        """The stores as lists, for memory that the CPU cannot reach: positions (int64), old
        values and new values of each target."""
