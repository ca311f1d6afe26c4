/* A proxy between a client and an S3 server that makes the network, and the server, fail.
 *
 *     fault_proxy --to HOST:PORT --plan FILE [--seed N]
 *     fault_proxy --to HOST:PORT --rate R [--seed N]
 *         --listen [HOST:]PORT    127.0.0.1:0, that is, any port
 *         --delay-ms N            of the fault `delay` (200)
 *         --stall-ms N            at most, for a stalled connection (60000)
 *
 * See fault_plan.h for the faults and for plans. Requests are passed on unchanged, the
 * Host field too, which is part of S3's signatures. The port is printed on stdout as
 * 'port N'. At SIGUSR1, and at SIGTERM or SIGINT, which end it, it prints counts on
 * stderr: 'requests N', then 'FAULT N' for each.
 *
 * Each connection has a thread. If the server closes early without a plan, the client
 * gets a reset.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fault_relay.h"

typedef struct options {
    const char *listen, *to, *plan;
    double rate;
    uint64_t seed;
    int delay_ms, stall_ms;
} options;

static int usage(void)
{
    fprintf(stderr, "usage: fault_proxy --to HOST:PORT --plan FILE|--rate R [--seed N]\n"
                    "                   [--listen [HOST:]PORT] [--delay-ms N]"
                    " [--stall-ms N]\n");
    return 2;
}

static bool read_options(int argc, char **argv, options *o)
{
    for (int i = 1; i < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1];
        if (value == NULL)
            return false;
        if (strcmp(name, "--listen") == 0)
            o->listen = value;
        else if (strcmp(name, "--to") == 0)
            o->to = value;
        else if (strcmp(name, "--plan") == 0)
            o->plan = value;
        else if (strcmp(name, "--rate") == 0)
            o->rate = strtod(value, NULL);
        else if (strcmp(name, "--seed") == 0)
            o->seed = strtoull(value, NULL, 10);
        else if (strcmp(name, "--delay-ms") == 0)
            o->delay_ms = atoi(value);
        else if (strcmp(name, "--stall-ms") == 0)
            o->stall_ms = atoi(value);
        else
            return false;
    }
    return o->to != NULL && (o->plan != NULL) != (o->rate >= 0);
}

/* [HOST:]PORT */
static struct addrinfo *resolve(const char *address)
{
    char host[256] = "127.0.0.1";
    const char *colon = strrchr(address, ':');
    const char *port = colon != NULL ? colon + 1 : address;
    size_t n = colon != NULL ? (size_t)(colon - address) : 0;
    if (n > 0 && n < sizeof host) {
        memcpy(host, address, n);
        host[n] = '\0';
    }
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    int failed = getaddrinfo(host, port, &hints, &found);
    if (failed)
        fprintf(stderr, "fault_proxy: %s: %s\n", address, gai_strerror(failed));
    return failed ? NULL : found;
}

static int listen_on(const char *address)
{
    struct addrinfo *a = resolve(address);
    if (a == NULL)
        return -1;
    int on = 1, fd = socket(a->ai_family, a->ai_socktype, a->ai_protocol);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    struct sockaddr_storage bound;
    socklen_t n = sizeof bound;
    if (fd < 0 || bind(fd, a->ai_addr, a->ai_addrlen) != 0 || listen(fd, 128) != 0 ||
        getsockname(fd, (struct sockaddr *)&bound, &n) != 0) {
        fprintf(stderr, "fault_proxy: %s: %s\n", address, strerror(errno));
        if (fd >= 0)
            close(fd);
        fd = -1;
    } else {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)&bound;
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&bound;
        printf("port %u\n",
               ntohs(bound.ss_family == AF_INET6 ? v6->sin6_port : v4->sin_port));
        fflush(stdout);
    }
    freeaddrinfo(a);
    return fd;
}

/* ---- connections ---------------------------------------------------------------- */

static void *serve(void *argument)
{
    relay *r = argument;
    proxy *p = r->proxy;
    relay_run(r);
    pthread_mutex_lock(&p->lock);
    if (r->before != NULL)
        r->before->after = r->after;
    else
        p->first = r->after;
    if (r->after != NULL)
        r->after->before = r->before;
    pthread_cond_signal(&p->left);
    pthread_mutex_unlock(&p->lock);
    free(r);
    return NULL;
}

static void welcome(proxy *p, int fd)
{
    relay *r = calloc(1, sizeof *r);
    if (r == NULL) {
        close(fd);
        return;
    }
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    r->proxy = p;
    r->client.fd = fd;
    r->server.fd = -1;
    pthread_mutex_lock(&p->lock);
    r->after = p->first;
    if (r->after != NULL)
        r->after->before = r;
    p->first = r;
    pthread_mutex_unlock(&p->lock);
    pthread_t thread;
    pthread_attr_t detached;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    if (pthread_create(&thread, &detached, serve, r) != 0)
        serve(r); /* no threads left: serve only this client for now */
    pthread_attr_destroy(&detached);
}

static void end_connections(proxy *p)
{
    pthread_mutex_lock(&p->lock);
    p->stopping = true;
    for (relay *r = p->first; r != NULL; r = r->after) {
        if (r->client.fd >= 0)
            shutdown(r->client.fd, SHUT_RDWR);
        if (r->server.fd >= 0)
            shutdown(r->server.fd, SHUT_RDWR);
    }
    while (p->first != NULL)
        pthread_cond_wait(&p->left, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

/* ---- the whole ------------------------------------------------------------------ */

static void report(proxy *p)
{
    fprintf(stderr, "requests %llu\n", atomic_load(&p->n_requests));
    for (int i = 1; i < N_FAULTS; i++)
        fprintf(stderr, "%s %llu\n", fault_names[i], atomic_load(&p->n_faults[i]));
    fflush(stderr);
}

typedef struct acceptor {
    proxy *proxy;
    int listener;
} acceptor;

/* Until the listener is shut down. */
static void *accept_clients(void *argument)
{
    const acceptor *a = argument;
    for (;;) {
        int fd = accept(a->listener, NULL, NULL);
        if (fd >= 0)
            welcome(a->proxy, fd);
        else if (errno == EINVAL || errno == EBADF)
            return NULL;
    }
}

/* SIGNALS are blocked in every thread; this waits for them. */
static int run(proxy *p, int listener, const sigset_t *signals)
{
    acceptor a = {.proxy = p, .listener = listener};
    pthread_t accepting;
    if (pthread_create(&accepting, NULL, accept_clients, &a) != 0)
        return 1;
    int number;
    while (sigwait(signals, &number) == 0 && number == SIGUSR1)
        report(p);
    shutdown(listener, SHUT_RDWR);
    pthread_join(accepting, NULL);
    end_connections(p);
    report(p);
    return 0;
}

static fault_plan *read_plan(const options *o)
{
    if (o->plan == NULL)
        return fault_plan_random(o->rate, o->seed);
    FILE *file = fopen(o->plan, "r");
    if (file == NULL) {
        perror(o->plan);
        return NULL;
    }
    fault_plan *plan = fault_plan_read(file, o->plan, o->seed);
    fclose(file);
    return plan;
}

int main(int argc, char **argv)
{
    options o = {.listen = "0", .rate = -1, .delay_ms = 200, .stall_ms = 60000};
    if (!read_options(argc, argv, &o))
        return usage();
    static proxy p;
    pthread_mutex_init(&p.lock, NULL);
    pthread_mutex_init(&p.lists.lock, NULL);
    pthread_cond_init(&p.left, NULL);
    p.delay_ms = o.delay_ms;
    p.stall_ms = o.stall_ms;
    p.plan = read_plan(&o);
    if (p.plan == NULL)
        return 2;
    int status = 1;
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    struct addrinfo *server = resolve(o.to);
    p.server = server;
    int listener = server != NULL ? listen_on(o.listen) : -1;
    if (listener >= 0) {
        status = run(&p, listener, &signals);
        close(listener);
    }
    if (server != NULL)
        freeaddrinfo(server);
    list_memory_release(&p.lists);
    fault_plan_free(p.plan);
    return status;
}
