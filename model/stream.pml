/* The protocol of docs/PROTOCOL.md as a model that spin checks in every interleaving;
 * check.sh runs it. One file, two settings:
 *
 *     (default)    WRITERS writers of one stream, any of whom dies at any step; puts whose
 *                  reply is lost or that take effect late, after their sender's death too
 *     -DCOLLECT    one or more writers beside a maker of ways, collectors and a follower
 *
 * Contents are not modelled, only whose they are: version V has the content of the
 * attempt whose commit it is. An attempt is a number made of its writer, its version and
 * which of the writer's tries at that version it is. 0 is none, ZERO is version 0, which
 * is there from the start. A delta is the attempt that it leads to and, in base[], the
 * attempt that it starts from.
 *
 * A put whose reply is lost is kept in late_*: the store may do it at once, later or
 * never. That covers a reply lost after the deed, a request lost before it, and a request
 * that arrives when its sender is long dead.
 *
 * Death is a jump to `dead`: what a writer knew is lost, what it sent is not. A restart is
 * one of the other writers, for nothing makes them begin at once.
 *
 * Three things go wrong outside the protocol, each in runs of its own:
 *
 *     TORN     the weights change while they are read: the delta of an attempt may not
 *              decode
 *     ROT      a bit of a writer's baseline flips at any time, in one of SLICES slices;
 *              an anchor may be made of a rotten baseline
 *     GONE     the place of the store is empty for a while (an unmounted file system), or
 *              an older copy of the store comes in its place; a reader uses versions, and
 *              goes back to older ones if somebody wants that
 *
 *     DERIVED                   versions are made of those of another stream, in order: a
 *                               writer continues after what the head is made of
 *     STALE_GET, STALE_LIST     the fence, a list of followers may miss what is there
 *     THIN                      somebody removes an anchor that a newer one supersedes
 *     LISTED                    the follower starts at version 0 and is listed from then on
 *     NO_FOLLOWER, NO_LATE, FOLDS, WAYS, TRIES, COLLECTORS     the size of a run
 *     NO_FENCE, NO_PARENT_EPOCH     one of two guards is off; both: epochs go down
 *     NO_...                    a check of TORN, ROT or GONE is off
 *     BUG_...                   a rule of the protocol is broken, and it must be found out
 */
#ifndef WRITERS
#define WRITERS 2
#endif
#ifndef VERSIONS
#define VERSIONS 2 /* 1 to VERSIONS are written */
#endif
#ifndef COLLECTORS
#define COLLECTORS 1
#endif
#ifndef WAYS
#define WAYS 2 /* that are made, at most */
#endif

#ifndef TRIES
#define TRIES 2 /* of a writer at one version */
#endif

#ifndef SLICES
#define SLICES 2 /* of a baseline: one is swept for each version */
#endif

#define ATTEMPT(w, v, k) (1 + ((w) * VERSIONS + (v) - 1) * TRIES + (k))
#define WRITER_OF(a)     (((a) - 1) / (VERSIONS * TRIES))
#define VERSION_OF(a)    ((((a) - 1) / TRIES) % VERSIONS + 1)
#define ZERO             (1 + WRITERS * VERSIONS * TRIES)
#define WHOLE            3 /* both parts of an attempt's or a way's objects are there */

/* ---- the store ------------------------------------------------------------------ */
byte epochs[WRITERS + 3];  /* [E] = writer + 1 */
byte commits[VERSIONS + 2]; /* [V] = attempt: the log */
byte objects[ZERO + 1];    /* [attempt] = bits of its parts */

/* ---- requests on their way ------------------------------------------------------- */
byte late_claim[WRITERS];  /* an epoch */
byte late_commit[WRITERS * TRIES]; /* attempts: one of each try */

/* ---- what the checks know -------------------------------------------------------- */
byte base[ZERO + 1];          /* [attempt]: its delta starts from this one */
byte epoch_of_writer[WRITERS];

#ifdef DERIVED
byte made_of[ZERO + 1]; /* [attempt]: a version of the other stream */
#endif
#ifdef TORN
bit torn[ZERO + 1]; /* [attempt]: its delta does not decode */
#endif
#ifdef GONE
bit absent; /* the place of the store is empty */
bit place;  /* which copy of the store is there: the one that was, or an older one */
#endif

#define EPOCH_OF(a) ((a) == ZERO -> 0 : epoch_of_writer[WRITER_OF(a)])

/* The store creates commits/V: everything that must be true of a commit is asserted
 * here, where it comes to be, whoever sent it and whenever. */
inline create_commit(version, attempt)
{
    assert(commits[version] == 0);
    assert(commits[version - 1] != 0);                    /* no gaps */
    assert(base[attempt] == commits[version - 1]);        /* a delta from the parent */
    assert(EPOCH_OF(attempt) >= EPOCH_OF(commits[version - 1]));
    assert(objects[attempt] == WHOLE);                    /* nothing named is missing */
#ifdef DERIVED
    assert(made_of[attempt] == made_of[commits[version - 1]] + 1); /* in order, each once */
#endif
#ifdef TORN
    assert(!torn[attempt]);                               /* every version decodes */
#endif
    commits[version] = attempt;
}

/* Late requests are done here, or never. */
inline deliver_claim(w)
{
    if
    ::epochs[late_claim[w]] == 0->
        epochs[late_claim[w]] = w + 1;
        epoch_of_writer[w] = late_claim[w]
    ::else
    fi;
    late_claim[w] = 0
}

inline deliver_commit(slot)
{
    if
    ::commits[VERSION_OF(late_commit[slot])] == 0->
        create_commit(VERSION_OF(late_commit[slot]), late_commit[slot])
    ::else
    fi;
    late_commit[slot] = 0
}

active proctype Network()
{
end_idle:
    do
    ::atomic { late_claim[0] != 0->deliver_claim(0) }
    ::atomic { late_commit[0 * TRIES] != 0->deliver_commit(0 * TRIES) }
#if TRIES > 1
    ::atomic { late_commit[0 * TRIES + 1] != 0->deliver_commit(0 * TRIES + 1) }
#endif
#if WRITERS > 1
    ::atomic { late_claim[1] != 0->deliver_claim(1) }
    ::atomic { late_commit[1 * TRIES] != 0->deliver_commit(1 * TRIES) }
#if TRIES > 1
    ::atomic { late_commit[1 * TRIES + 1] != 0->deliver_commit(1 * TRIES + 1) }
#endif
#endif
#if WRITERS > 2
    ::atomic { late_claim[2] != 0->deliver_claim(2) }
    ::atomic { late_commit[2 * TRIES] != 0->deliver_commit(2 * TRIES) }
#if TRIES > 1
    ::atomic { late_commit[2 * TRIES + 1] != 0->deliver_commit(2 * TRIES + 1) }
#endif
#endif
    od
}

/* ---- writers --------------------------------------------------------------------- */

#define MAY_DIE                                                                         \
    if                                                                                  \
    ::skip                                                                              \
    ::goto dead                                                                         \
    fi

/* An absent store is waited for. */
#ifdef GONE
#define PRESENT (!absent)
#else
#define PRESENT true
#endif
/* A write reaches only the copy that the check before it looked at. */
#if defined(GONE) && !defined(BUG_ANY_PLACE) && !defined(NO_GROUND)
#define REACHED (!absent && seen == place)
#elif defined(GONE)
#define REACHED (!absent)
#else
#define REACHED true
#endif

proctype Writer(byte w)
{
    byte epoch = 1;
    byte head;     /* the newest version that this writer knows */
    byte baseline; /* the content it diffs against */
    byte attempt;
    byte try;
#ifdef BUG_ADOPT
    bit adopted;
#endif
#ifdef ROT
    byte rotten;  /* the slice with the flipped bit; 0: none */
    byte n_wrong; /* versions since, which are not what the trainer had */
#endif
#ifdef DERIVED
    byte source; /* what the newest version is made of */
#endif
#ifdef GONE
    bit seen; /* the copy of the store that the last check looked at */
#endif

#ifdef BUG_READ_FIRST
    /* What the head is made of is read now, and not again after the claim. */
    atomic {
        do
        ::commits[head + 1] != 0->head++
        ::else->break
        od;
        source = made_of[commits[head]]
    }
#endif
    /* Open: claim the lowest free epoch. A list would only skip some that are taken, and
     * so would the epoch of the head: no record of an epoch is lost here. */
claim:
    do
    ::atomic {
          PRESENT && epochs[epoch] == 0->epochs[epoch] = w + 1;
          epoch_of_writer[w] = epoch;
          break
      }
#if !defined(COLLECT) && !defined(NO_LATE)
    ::atomic { PRESENT && epochs[epoch] == 0 && late_claim[w] == 0->late_claim[w] = epoch } /* lost */
#endif
    ::atomic { PRESENT && epochs[epoch] == w + 1->break }           /* its reply was lost */
    ::atomic { PRESENT && epochs[epoch] != 0 && epochs[epoch] != w + 1->epoch++ }
    ::goto dead
    od;

    /* Find the head. A hint or a list says where the walk begins; it ends when the next
     * commit is not there, and then this is the head, whatever the hint said. */
    atomic {
        PRESENT;
        do
        ::commits[head + 1] != 0->head++
        ::else->break
        od;
        baseline = commits[head];
#if defined(DERIVED) && !defined(BUG_READ_FIRST)
        source = made_of[baseline];
#endif
#ifndef NO_PARENT_EPOCH
        if
        ::EPOCH_OF(commits[head]) > epoch->goto dead /* fenced */
        ::else
        fi;
#endif
    }

prepare:
    atomic {
        if
        ::head == VERSIONS->goto dead
        ::else
        fi;
        attempt = ATTEMPT(w, head + 1, try);
        base[attempt] = baseline;
#ifdef DERIVED
        made_of[attempt] = source + 1;
#endif
#ifdef TORN
        if
        ::torn[attempt] = 0
        ::torn[attempt] = 1
        fi;
#endif
#ifdef ROT
        if
        ::skip
        ::rotten == 0->rotten = 1
#if SLICES > 1
        ::rotten == 0->rotten = 2
#endif
        fi;
#endif
#ifdef BUG_BASELINE_EARLY
        baseline = attempt;
#endif
    }
#ifndef BUG_COMMIT_FIRST
    atomic { MAY_DIE; objects[attempt] = WHOLE }
    if
    ::skip
    ::atomic { try + 1 < TRIES->try++; goto prepare } /* skipped: no commit was sent */
    fi;
#endif

#if defined(TORN) && !defined(NO_PROOF)
    /* The delta is applied to the baseline and must lead to the new state. */
    atomic {
        if
        ::torn[attempt] && try + 1 < TRIES->try++; goto prepare
        ::torn[attempt] && try + 1 == TRIES->goto dead /* the next publish is another's */
        ::!torn[attempt]
        fi
    }
#endif

fence:
#if defined(GONE) && !defined(NO_GROUND)
    /* The ground: the parent and this writer's epoch are still there. */
    atomic {
        PRESENT;
        seen = place;
        if
        ::commits[head] != baseline || epochs[epoch] != w + 1->goto dead /* rolled back */
        ::else
        fi
    }
#endif
#ifndef NO_FENCE
    atomic {
        PRESENT;
        if
        ::epochs[epoch + 1] != 0->
#ifdef BUG_CLEAN_UP
            objects[attempt] = 0;
#endif
            goto dead
#ifdef STALE_GET
        ::epochs[epoch + 1] != 0
#endif
#ifdef BUG_ADOPT
        ::adopted
#endif
        ::epochs[epoch + 1] == 0
        fi
    }
#endif
    if
#ifdef GONE
    ::atomic {
          REACHED && commits[head + 1] == 0->
          create_commit(head + 1, attempt);
          goto committed
      }
    ::atomic { !REACHED && !absent->goto fence } /* refused: another place */
#ifdef BUG_MAKE_PLACE
    ::absent->goto committed /* in the empty place, where it is lost */
#endif
#else
    ::atomic { commits[head + 1] == 0->create_commit(head + 1, attempt); goto committed }
#endif
#ifndef NO_LATE
    ::atomic { REACHED && late_commit[w * TRIES + try] == 0->late_commit[w * TRIES + try] = attempt }
#endif
    ::commits[head + 1] != 0                                   /* refused */
    ::goto dead
    fi;

    /* Look whose it is. */
    atomic {
        PRESENT;
        if
#ifndef BUG_NO_WRITE_ID
        ::commits[head + 1] == attempt->goto committed
#endif
        ::commits[head + 1] == 0->
progress_again:
            if
            ::goto fence                               /* the same record again */
            ::try + 1 < TRIES->try++; goto prepare /* given up; it may yet arrive */
            fi
#if !defined(BUG_SETTLE_BY_READ) && !defined(BUG_NO_WRITE_ID)
        ::commits[head + 1] != 0 && commits[head + 1] != attempt && WRITER_OF(commits[head + 1]) == w->
            head++; /* an earlier attempt of this writer arrived: it is the version */
            baseline = commits[head];
#ifdef DERIVED
            source = made_of[baseline];
#endif
            try = 0;
            goto prepare
#endif
        ::else->
#ifdef BUG_ADOPT
            head++;
            baseline = commits[head];
            try = 0;
            adopted = 1;
            goto prepare;
#endif
            /* Fenced. A writer that stops here did not commit this version. */
            assert(WRITER_OF(commits[head + 1]) != w);
            goto dead
        fi
    }

committed:
    atomic {
        head++;
        baseline = attempt;
#ifdef DERIVED
        source = made_of[attempt];
#endif
#ifdef GONE
        /* what was acknowledged is there, unless an older copy came since */
        assert(place != seen || baseline == commits[head]);
#else
        assert(baseline == commits[head]);
#endif
        try = 0
    }
#ifdef ROT
    /* One slice of the baseline is compared with the committed digests; a slice that is
     * not what it should be is repaired, and the versions since are reported. */
    atomic {
        if
        ::rotten != 0->n_wrong++
        ::else
        fi;
        assert(n_wrong <= SLICES);
#ifndef NO_SWEEP
        if
        ::rotten == 1 + head % SLICES->rotten = 0; n_wrong = 0
        ::else
        fi
#endif
    }
#endif
#ifdef BUG_COMMIT_FIRST
    objects[attempt] = WHOLE;
#endif
    goto prepare;
dead:
    atomic { epoch = 0; head = 0; baseline = 0; attempt = 0; try = 0 }
#ifdef DERIVED
    source = 0
#endif
}

#ifdef GONE
/* ---- the place of the store ------------------------------------------------------- */

proctype Place()
{
    byte copied_commits[VERSIONS + 2];
    byte copied_epochs[WRITERS + 3];
    byte i;

    /* A copy is made, whole; then the store goes, and comes back as it was or as that
     * copy. Requests that were on their way to it are lost. */
    if
    ::atomic {
          i = 0;
          do
          ::i < VERSIONS + 2->copied_commits[i] = commits[i]; i++
          ::else->break
          od;
          i = 0;
          do
          ::i < WRITERS + 3->copied_epochs[i] = epochs[i]; i++
          ::else->break
          od;
          i = 0
      }
    fi;
    absent = 1;
    if
    ::absent = 0
    ::atomic {
          i = 0;
          do
          ::i < VERSIONS + 2->commits[i] = copied_commits[i]; i++
          ::else->break
          od;
          i = 0;
          do
          ::i < WRITERS + 3->epochs[i] = copied_epochs[i]; i++
          ::else->break
          od;
          i = 0;
          do
          ::i < WRITERS->late_claim[i] = 0; i++
          ::else->break
          od;
          i = 0;
          do
          ::i < WRITERS * TRIES->late_commit[i] = 0; i++
          ::else->break
          od;
          i = 0;
          place = 1;
          absent = 0
      }
    fi
}

/* ---- a reader --------------------------------------------------------------------- */

byte used[VERSIONS + 1]; /* [V]: what the reader used as version V; 0: nothing */

proctype Reader()
{
    byte at;      /* its version; its content is used[at] */
    byte highest; /* that it used */

    used[0] = ZERO;
    do
    ::atomic {
          !absent && at < VERSIONS->
#ifndef NO_MEMORY
          if
          ::commits[highest] != used[highest]->goto refused /* rolled back */
          ::else
          fi;
#endif
          if
          ::commits[at] != used[at]->goto refused /* by the parent's hash */
          ::else
          fi;
          if
          ::commits[at + 1] == 0->skip
          ::else->
              at++;
              /* one number never stands for two contents */
              assert(used[at] == 0 || used[at] == commits[at]);
              used[at] = commits[at];
              if
              ::at > highest->highest = at
              ::else
              fi
          fi
      }
    ::atomic { at > 0->at-- } /* somebody wants an older version */
    ::break
    od;
refused:
    atomic { at = 0; highest = 0 }
}
#endif

#ifdef COLLECT
/* ---- ways ------------------------------------------------------------------------ */
/* An anchor of V leads from nothing to V, a fold from V - 2 to V. */
#ifdef THIN
bit remade; /* the anchor of version 1, after its record was removed */
#endif
bit anchors[VERSIONS + 1]; /* ways/V-anchor.json is there */
byte anchor_objects[VERSIONS + 1];
bit folds[VERSIONS + 1];
byte fold_objects[VERSIONS + 1];
bit late_anchor[VERSIONS + 1]; /* the record's put is on its way */
#ifdef ROT
bit bad_anchor[VERSIONS + 1]; /* its objects are not the version that it says */
#define GOOD(v) (!bad_anchor[v])
#else
#define GOOD(v) true
#endif
/* A collector reads the anchor that it is to rely on, and proves it. */
#ifdef NO_FLOOR_PROOF
#define PROVEN(v) true
#else
#define PROVEN(v) GOOD(v)
#endif

#define NOBODY 255
byte listed = NOBODY; /* the version in the follower's record */
byte highest_floor;   /* that any collector chose: what the checks know */

/* One can come from nothing to the head: there is an anchor with its objects, and the
 * objects of every commit above it. And no commit above all floors lacks objects. */
inline check_reach()
{
    d_step
    {
        v_ = 0;
        do
        ::commits[v_ + 1] != 0->v_++
        ::else->break
        od;
        do
        ::v_ > highest_floor->
            assert(objects[commits[v_]] == WHOLE);
            v_--
        ::else->break
        od;
#ifdef THIN /* the anchor at the floor may be away for a moment: from the head on */
        do
        ::commits[v_ + 1] != 0->v_++
        ::else->break
        od;
#endif
        do
        ::v_ == 0->
            assert(objects[ZERO] == WHOLE);
            break
        ::v_ > 0 && anchors[v_] && anchor_objects[v_] == WHOLE && GOOD(v_)->break
        ::else->
            assert(objects[commits[v_]] == WHOLE);
            v_--
        od;
        v_ = 0
    }
}
hidden byte v_;

proctype Maker()
{
    byte v;
    byte made;

    do
    ::made < WAYS->
        atomic {
            v = 1;
            do
            ::v < VERSIONS->v++
            ::break
            od;
            if
            ::commits[v] == 0->goto again
            ::else
            fi
        }
        if
        ::atomic {
              !anchors[v]->anchor_objects[v] = WHOLE;
#ifdef THIN
              remade = remade || v == 1;
#endif
#ifdef ROT
              if
              ::bad_anchor[v] = 0
              ::bad_anchor[v] = 1
              fi
#endif
          }
#if defined(ROT) && !defined(NO_ANCHOR_PROOF)
            /* It is proven from its own bytes before its record is written. */
            if
            ::bad_anchor[v]->goto again
            ::else
            fi;
#endif
            if
            ::atomic { !anchors[v]->anchors[v] = 1 }
#ifndef NO_LATE
            ::late_anchor[v] = 1
#endif
            ::skip /* died, or gave up */
            fi
#ifdef FOLDS
        ::atomic { v >= 2 && !folds[v]->fold_objects[v] = WHOLE }
            if
            ::atomic { !folds[v]->folds[v] = 1 }
            ::skip
            fi
#endif
        ::skip
        fi;
again:
        atomic { made++; v = 0 }
    ::break
    od
}

proctype Late_way()
{
end_idle:
    do
    ::atomic { late_anchor[1]->anchors[1] = 1; late_anchor[1] = 0 }
#if VERSIONS > 1
    ::atomic { late_anchor[2]->anchors[2] = 1; late_anchor[2] = 0 }
#endif
#if VERSIONS > 2
    ::atomic { late_anchor[3]->anchors[3] = 1; late_anchor[3] = 0 }
#endif
    od
}

#ifdef THIN
/* ---- superseded anchors ----------------------------------------------------------- */

byte floor_record; /* floor.json */
byte n_ended;

/* In the end, the versions that the collection kept can be reached. */
inline check_kept()
{
    d_step
    {
        n_ended++;
        assert(n_ended < 2 || highest_floor > 0 || objects[ZERO] == WHOLE);
        assert(n_ended < 2 || highest_floor == 0 ||
               (anchors[highest_floor] && anchor_objects[highest_floor] == WHOLE))
    }
}

proctype Thinner()
{
    /* All deltas and version 0 are there, and an anchor of version 2. */
    atomic {
        if
        ::objects[ZERO] == WHOLE && anchors[1] && anchors[2] && anchor_objects[2] == WHOLE
        ::else->goto done
        fi
    }
    atomic { anchors[1] = 0; remade = 0 }
#ifndef BUG_NO_LOOK_AT_FLOOR
    atomic {
        if
        ::floor_record == 1->anchors[1] = 1; goto done
        ::else
        fi
    }
#endif
    /* The objects that it names; those of an anchor that is made again have other names. */
    atomic {
        if
        ::!remade->anchor_objects[1] = 0
        ::else
        fi;
        check_reach()
    }
done:
    check_kept()
}
#endif

/* ---- the collector --------------------------------------------------------------- */

proctype Collector()
{
    byte pin = VERSIONS;
    byte floor;
    byte v;
    byte head;
    byte a;
#ifdef BUG_WAY_ORPHANS
    bit unnamed[VERSIONS + 1];
#endif
    int named;

    atomic {
        if
#ifndef BUG_IGNORE_FOLLOWERS
        ::listed != NOBODY->pin = listed
        ::listed == NOBODY
#endif
#if defined(STALE_LIST) || defined(BUG_IGNORE_FOLLOWERS)
        ::skip
#endif
        fi
    }
    /* A floor: version 0, or one that has an anchor. */
    atomic {
        do
        ::floor < VERSIONS->floor++
        ::break
        od;
        if
        ::floor == 0
        ::floor > 0 && floor <= pin && anchors[floor] && anchor_objects[floor] == WHOLE && PROVEN(floor)
#ifdef BUG_FLOOR_WITHOUT_ANCHOR
        ::floor > 0 && floor <= pin && commits[floor] != 0
#endif
        ::else->goto done
        fi;
#ifdef THIN
    }
    floor_record = floor;
    atomic {
#ifndef BUG_NO_LOOK_AT_ANCHOR
        if
        ::floor > 0 && !anchors[floor]->goto done /* it begins again */
        ::else
        fi;
#endif
#endif
        if
        ::floor > highest_floor->highest_floor = floor
        ::else
        fi
    }

    /* Ways to or from versions below the floor: the records, then the objects. */
    v = 1;
    do
    ::v < floor->
        anchors[v] = 0;
        atomic { anchor_objects[v] = anchor_objects[v] & 1; check_reach() }
        atomic { anchor_objects[v] = 0; v++; check_reach() }
    ::v >= floor->break
    od;
#ifdef FOLDS
    v = 2;
    do
    ::v <= VERSIONS && v - 2 < floor && (folds[v] || v < floor)->
        folds[v] = 0;
        atomic { fold_objects[v] = 0; v++ }
    ::v <= VERSIONS && !(v - 2 < floor && (folds[v] || v < floor))->v++
    ::v > VERSIONS->break
    od;
#endif

    /* Objects of the commits up to the floor. */
    v = 0;
    do
    ::floor > 0 && v <= floor->
        atomic { objects[commits[v]] = objects[commits[v]] & 1; check_reach() }
        atomic { objects[commits[v]] = 0; v++; check_reach() }
    ::else->break
    od;

    /* Objects that no record names: those of a commit's attempts once another attempt has
     * that version, those of ways once the floor has passed them (done above). There is no
     * list here: whatever lies there when it comes to removing is taken to be on it. */
#ifdef BUG_NAMES_BEFORE_HEAD
    atomic {
        v = 1;
        do
        ::v <= VERSIONS->
            if
            ::commits[v] != 0->named = named | (1 << commits[v])
            ::else
            fi;
            v++
        ::else->break
        od
    }
#endif
    atomic {
        head = 0;
        do
        ::commits[head + 1] != 0->head++
        ::else->break
        od
    }
#ifndef BUG_NAMES_BEFORE_HEAD
    atomic { /* commits are never changed: reading them one by one sees the same */
        v = 1;
        do
        ::v <= head->named = named | (1 << commits[v]); v++
        ::else->break
        od
    }
#endif
    atomic {
        a = 1;
        do
        ::a < ZERO->
            if
#ifdef BUG_ORPHANS_ABOVE_HEAD
            ::!(named & (1 << a))->objects[a] = 0
#else
            ::VERSION_OF(a) <= head && !(named & (1 << a))->objects[a] = 0
#endif
            ::else
            fi;
            a++
        ::else->break
        od;
        check_reach()
    }
#ifdef BUG_WAY_ORPHANS
    /* Objects of ways that no record names, long ago put or so it seems. */
    atomic {
        v = 1;
        do
        ::v <= VERSIONS->unnamed[v] = !anchors[v]; v++
        ::else->break
        od;
        v = 1
    }
    atomic {
        do
        ::v <= VERSIONS->
            if
            ::unnamed[v]->anchor_objects[v] = 0; unnamed[v] = 0
            ::else
            fi;
            v++
        ::else->break
        od;
        check_reach()
    }
#endif
done:
#ifdef THIN
    check_kept();
#endif
    atomic { pin = 0; floor = 0; v = 0; head = 0; a = 0; named = 0 }
}

/* ---- a follower ------------------------------------------------------------------ */

#define COMMIT 0
#define FOLD   1
#define ANCHOR 2
#define PARTS(kind, v)                                                                  \
    (kind == COMMIT -> objects[commits[v]]                                              \
                    : (kind == FOLD -> fold_objects[v] : anchor_objects[v]))
#define BIT(kind, v) (1 << ((v) * 3 + (kind)))

proctype Follower()
{
    bit have; /* it has weights, of version `at` */
    byte at;
    byte part[2]; /* the content of the two halves of its weights */
    byte kind;
    byte to;
    short passed_over;

#ifdef LISTED
    atomic { have = 1; part[0] = ZERO; part[1] = ZERO }
#endif
plan:
    atomic {
        /* Its weights are one committed version, and no mix. */
        assert(!have || (part[0] == commits[at] && part[1] == commits[at]));
        kind = COMMIT;
        if
        ::have && commits[at + 1] != 0 && !(passed_over & BIT(COMMIT, at + 1))->to = at + 1
        ::!have && !(passed_over & BIT(COMMIT, 0))->to = 0
#ifdef FOLDS
        ::have && at + 2 <= VERSIONS && folds[at + 2] && !(passed_over & BIT(FOLD, at + 2))->
            kind = FOLD;
            to = at + 2
#endif
#ifndef BUG_NO_FALLBACK
        ::anchors[1] && (!have || at < 1) && !(passed_over & BIT(ANCHOR, 1))->
            kind = ANCHOR;
            to = 1
#if VERSIONS > 1
        ::anchors[2] && (!have || at < 2) && !(passed_over & BIT(ANCHOR, 2))->
            kind = ANCHOR;
            to = 2
#endif
#if VERSIONS > 2
        ::anchors[3] && (!have || at < 3) && !(passed_over & BIT(ANCHOR, 3))->
            kind = ANCHOR;
            to = 3
#endif
#endif
        ::else->
            if
            ::have && commits[at + 1] == 0->goto idle
            ::else->passed_over = 0; goto plan /* must not go on for ever */
            fi
        fi
    }
    /* Fetch both parts; apply when both are there. */
    atomic {
        if
        ::PARTS(kind, to) & 1
#ifdef BUG_APPLY_EARLY
            ->part[0] = commits[to]
#endif
        ::else->goto missing
        fi
    }
    atomic {
        if
        ::PARTS(kind, to) & 2
        ::else->goto missing
        fi;
        assert(kind != COMMIT || to == 0 || base[commits[to]] == part[1]);
        part[0] = commits[to];
        part[1] = commits[to];
        at = to;
        have = 1;
        passed_over = 0
    }
#ifdef LISTED
    listed = at;
#endif
progress_moved:
    goto plan;
missing:
    atomic {
#if defined(LISTED) && !defined(STALE_LIST)
        assert(kind != COMMIT); /* a listed follower's next step is never collected */
#endif
        passed_over = passed_over | BIT(kind, to);
        goto plan
    }
idle:
    atomic { passed_over = 0; kind = 0; to = 0 }
end_newest:
    commits[at + 1] != 0;
    goto plan
}
#endif

init
{
    atomic {
        commits[0] = ZERO;
        objects[ZERO] = WHOLE;
        run Writer(0);
#if WRITERS > 1
        run Writer(1);
#endif
#if WRITERS > 2
        run Writer(2);
#endif
#ifdef LISTED
        listed = 0; /* before any collector begins */
#endif
#ifdef GONE
        run Place();
        run Reader();
#endif
#ifdef COLLECT
        run Maker();
        run Late_way();
        run Collector();
#ifdef THIN
        run Thinner();
#endif
#if COLLECTORS > 1
        run Collector();
#endif
#ifndef NO_FOLLOWER
        run Follower()
#endif
#endif
    }
}
