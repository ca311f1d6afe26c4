/* An inference engine for tests: the control interface of vLLM or SGLang over weights
 * that are really read, with threads that check every sweep (weights.h), and faults by a
 * seed (mishap.h).
 *
 *     http_engine --port N --dir DIR --truth FILE [--api vllm|sglang] [--own-copy]
 *                 [--threads N] [--dump FILE] [--updates FILE]
 *                 [--seed N --failures N --deaths N --delays N --long N --long-ms N]
 *
 * Rates are in thousandths (mishap_rates). For each update it appends a letter to the
 * file of --updates: p for a patch, s for a snapshot. It listens as soon as DIR holds a
 * version. It handles requests one after the other in the order in which they came, even
 * if the sender has gone, as the one thread of a real engine's core does. SIGUSR1 ends
 * the faults. SIGTERM makes it write its weights to the file of --dump and exit. Exit
 * status: 0, 2 if it served wrong weights, 9 by plan. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api.h"
#include "deltawire/stream.h"
#include "published.h"
#include "weights.h"

enum { MAX_BODY = 64 << 10 };

typedef struct MHD_Connection connection;

/* The part of a request's body that has arrived. */
typedef struct arrival {
    size_t n;
    char bytes[MAX_BODY];
} arrival;

static const route *routes = vllm_routes;
static int update_fd = -1;

/* ---- answers ---- */

void say(reply *r, unsigned status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(r->text, sizeof r->text, format, args);
    va_end(args);
    r->status = status;
}

static char last_label[LABEL_SIZE]; /* of the one thread that answers */

const char *version_label(void)
{
    bool is_taken;
    uint64_t version = weights_label(&is_taken);
    if (version == DW_NO_VERSION)
        return is_taken ? "none" : "default";
    return last_label;
}

bool take_label(const json_t *label, uint64_t *version)
{
    const char *text = json_string_value(label);
    char *end = NULL;
    if (!text || strspn(text, "0123456789abcdef") != 32 || text[32] != ':' ||
        strlen(text) >= LABEL_SIZE || text[33] < '0' || text[33] > '9')
        return false;
    *version = strtoull(text + 33, &end, 10);
    strcpy(last_label, text);
    return *end == '\0';
}

void answer_update_label(const request *q, reply *r)
{
    const json_t *label = json_object_get(q->body, "new_version");
    const char *text = json_string_value(label);
    uint64_t version = DW_NO_VERSION;
    if (!weights_are_own()) { /* they are the directory's, not those of a label */
        say(r, 404, "{\"detail\":\"Not Found\"}");
        return;
    }
    if (text && strcmp(text, "none") == 0)
        weights_drop_version();
    else if (text && (strcmp(text, "default") == 0 || take_label(label, &version)))
        weights_restore_version(version);
    else
        engine_fault("a label that no agent gives");
    say(r, 200, "{\"success\":true,\"new_version\":\"%s\"}", text);
}

void note_update(char kind)
{
    if (update_fd >= 0 && write(update_fd, &kind, 1) != 1)
        perror("--updates");
}

static void answer_status(reply *r)
{
    say(r, 200, "{\"version\":%" PRIi64 ",\"sweeps\":%" PRIu64 "}",
        (int64_t)weights_version(), weights_sweeps());
}

static void find_answer(const request *q, reply *r)
{
    if (strcmp(q->path, "/test/status") == 0) {
        answer_status(r);
        return;
    }
    for (const route *at = routes; at->method; at++)
        if (strcmp(at->method, q->method) == 0 && strcmp(at->path, q->path) == 0) {
            /* an update decides by itself how it fails */
            bool is_update = strstr(q->path, "/update_weights") != NULL;
            if (q->fate == MISHAP_FAIL_BEFORE && !is_update) {
                say(r, 500, "{\"error\":\"Failed: an accident\"}");
                return;
            }
            mishap_point(1);
            at->answer(q, r);
            mishap_point(1);
            if (q->fate == MISHAP_FAIL_AFTER && !is_update)
                say(r, 500, "{\"error\":\"Failed: an accident\"}");
            return;
        }
    say(r, 404, "{\"detail\":\"Not Found\"}");
}

/* ---- HTTP ---- */

static ssize_t give_half(void *context, uint64_t at, char *buf, size_t max)
{
    const char *half = context;
    size_t n = strlen(half) / 2;
    if (at >= n)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    size_t n_give = n - (size_t)at < max ? n - (size_t)at : max;
    memcpy(buf, half + at, n_give);
    return (ssize_t)n_give;
}

static enum MHD_Result send_reply(connection *c, const reply *r, mishap fate)
{
    size_t n = strlen(r->text);
    struct MHD_Response *response =
        fate == MISHAP_HALF
            ? MHD_create_response_from_callback(n, 512, give_half, strdup(r->text), free)
            : MHD_create_response_from_buffer(n, (void *)r->text, MHD_RESPMEM_MUST_COPY);
    MHD_add_response_header(response, "Content-Type", "application/json");
    enum MHD_Result result = MHD_queue_response(c, r->status, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result answer(void *unused, connection *c, const char *path,
                              const char *method, const char *version, const char *upload,
                              size_t *n_upload, void **state)
{
    (void)unused;
    (void)version;
    arrival *a = *state;
    if (!a) {
        *state = calloc(1, sizeof *a);
        return *state ? MHD_YES : MHD_NO;
    }
    if (*n_upload > 0) {
        if (*n_upload > sizeof a->bytes - a->n)
            return MHD_NO;
        memcpy(a->bytes + a->n, upload, *n_upload);
        a->n += *n_upload;
        *n_upload = 0;
        return MHD_YES;
    }
    request q = {.method = method,
                 .path = path,
                 .mode = MHD_lookup_connection_value(c, MHD_GET_ARGUMENT_KIND, "mode"),
                 .body = json_loadb(a->bytes, a->n, JSON_REJECT_DUPLICATES, NULL),
                 .fate = mishap_of_request()};
    reply r = {0};
    enum MHD_Result result = MHD_NO;
    if (q.fate != MISHAP_DROP_BEFORE)
        find_answer(&q, &r);
    if (q.fate != MISHAP_DROP_BEFORE && q.fate != MISHAP_DROP_AFTER)
        result = send_reply(c, &r, q.fate);
    json_decref(q.body);
    return result;
}

static void forget(void *unused, connection *c, void **state,
                   enum MHD_RequestTerminationCode code)
{
    (void)unused;
    (void)c;
    (void)code;
    free(*state);
    *state = NULL;
}

/* ---- the process ---- */

static void calm_down(int number)
{
    (void)number;
    mishap_calm();
}

typedef struct arguments {
    const char *dir, *truth, *dump, *updates;
    unsigned port, n_threads;
    bool own_copy;
    uint64_t seed;
    mishap_rates rates;
} arguments;

static void parse(arguments *a, int argc, char **argv)
{
    static const struct option options[] = {
        {"port", required_argument, NULL, 'p'},
        {"dir", required_argument, NULL, 'd'},
        {"truth", required_argument, NULL, 't'},
        {"api", required_argument, NULL, 'a'},
        {"own-copy", no_argument, NULL, 'o'},
        {"threads", required_argument, NULL, 'n'},
        {"dump", required_argument, NULL, 'D'},
        {"seed", required_argument, NULL, 's'},
        {"failures", required_argument, NULL, 'f'},
        {"deaths", required_argument, NULL, 'x'},
        {"delays", required_argument, NULL, 'w'},
        {"long", required_argument, NULL, 'l'},
        {"long-ms", required_argument, NULL, 'L'},
        {"updates", required_argument, NULL, 'u'},
        {0},
    };
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        unsigned number = optarg ? (unsigned)strtoul(optarg, NULL, 10) : 0;
        switch (option) {
        case 'p':
            a->port = number;
            break;
        case 'd':
            a->dir = optarg;
            break;
        case 't':
            a->truth = optarg;
            break;
        case 'a':
            routes = strcmp(optarg, "sglang") == 0 ? sglang_routes : vllm_routes;
            break;
        case 'o':
            a->own_copy = true;
            break;
        case 'n':
            a->n_threads = number;
            break;
        case 'D':
            a->dump = optarg;
            break;
        case 'u':
            a->updates = optarg;
            break;
        case 's':
            a->seed = strtoull(optarg, NULL, 10);
            break;
        case 'f':
            a->rates.failures = number;
            break;
        case 'x':
            a->rates.deaths = number;
            break;
        case 'w':
            a->rates.delays = number;
            break;
        case 'l':
            a->rates.long_delays = number;
            break;
        case 'L':
            a->rates.long_ms = number;
            break;
        default:
            exit(1);
        }
    }
    if (!a->dir || !a->truth || a->port == 0 || a->port > 65535) {
        fprintf(stderr, "usage: http_engine --port N --dir DIR --truth FILE ...\n");
        exit(1);
    }
}

int main(int argc, char **argv)
{
    arguments a = {.n_threads = 2};
    parse(&a, argc, argv);
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ends, NULL);
    signal(SIGUSR1, calm_down);
    signal(SIGPIPE, SIG_IGN);
    mishap_begin(a.seed, &a.rates);
    update_fd = a.updates ? open(a.updates, O_WRONLY | O_CREAT | O_APPEND, 0666) : -1;
    truth_open(a.truth);
    weights_open(a.dir, a.own_copy, a.n_threads);
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)a.port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    /* one thread, first come first served */
    struct MHD_Daemon *daemon = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD, 0, NULL, NULL, answer, NULL, MHD_OPTION_SOCK_ADDR,
        &address, MHD_OPTION_LISTENING_ADDRESS_REUSE, 1u, MHD_OPTION_NOTIFY_COMPLETED,
        forget, NULL, MHD_OPTION_END);
    if (!daemon) {
        fprintf(stderr, "http_engine: cannot listen at port %u\n", a.port);
        return 1;
    }
    int number;
    sigwait(&ends, &number);
    weights_pause();
    if (a.dump && !weights_dump(a.dump))
        return 1;
    _exit(ENGINE_FINE); /* without stopping its threads */
}
