/* Ports for the test engines. */
#ifndef DW_ENGINE_PORT_H
#define DW_ENGINE_PORT_H

#include <stdint.h>

/* A port below those that the system hands out: nobody takes it while its engine is away.
 * LUCK is any number. */
unsigned port_find(uint64_t luck);

#endif
