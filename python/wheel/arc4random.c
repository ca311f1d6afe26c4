/* Only in wheels: libexpat.a calls it, and glibc has it since 2.36. libexpat wants a seed
 * for its hash table, of a few bytes, which getrandom gives at once. */
#include <sys/random.h>
#include <stddef.h>

void arc4random_buf(void *out, size_t n_bytes);

void arc4random_buf(void *out, size_t n_bytes)
{
    unsigned char *bytes = out;
    while (n_bytes > 0) {
        ssize_t n = getrandom(bytes, n_bytes < 256 ? n_bytes : 256, 0);
        if (n > 0) {
            bytes += n;
            n_bytes -= (size_t)n;
        }
    }
}
