/* The end of the demo: checks that all have the same weights. */
#ifndef WORDLE_DEMO_PROOF_H
#define WORDLE_DEMO_PROOF_H

#include <stdio.h>

#include "demo_cast.h"

/* Asks every server for the digest of the weights that it computes with, has `deltawire
 * verify` read the files of each and all objects of the stream, and compares with the
 * trainer's own digest. Waits up to TIMEOUT_MS for servers that are still updating.
 * Prints the results; false if anything differs. */
bool demo_proof(FILE *out, demo_cast *c, const demo_facts *f, unsigned timeout_ms);

#endif
