/* wordle-demo: the whole loop on one machine, in processes that could run on several.
 *
 *     trainer ---- weights ---> bucket ---- weights ---> two rollout servers
 *        |                                                     ^
 *        +---- text: prompts, guesses, feedback ---- env ------+
 *
 * Each process has a group of its own, so Ctrl-C reaches only the demo, which ends them
 * all. The kernel kills them if the demo dies.
 */
#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "http_client.h"
#include "program.h"

static const char help[] =
    "usage: wordle-demo [OPTION...]\n"
    "\n"
    "Starts a trainer, an environment and two rollout servers, which share nothing but "
    "a\n"
    "bucket for weights and HTTP for text; shows how the trainer learns; proves in the\n"
    "end that the servers compute with the trainer's weights.\n"
    "\n"
    "  --store URL        of the stream (a temporary directory); what is put there is\n"
    "                     removed\n"
    "  --steps N          of reinforcement learning (500)\n"
    "  --warmup N         supervised steps before (800)\n"
    "  --answers N        words that can be the answer (8)\n"
    "  --seed N           of weights, games and warm-up (1)\n"
    "  --no-sync          publish nothing between the warm-up and the end\n"
    "  --restart          start a process again that is killed, instead of ending\n"
    "  --dir DIR          a new directory for all files, which stay there\n"
    "  --deltawire PATH   the command (that of the same build)\n"
    "  --on-trainer WORDS, --on-rollouts WORDS\n"
    "                     put before their commands, as 'ip netns exec host'\n"
    "  --env-host HOST, --rollout-host HOST\n"
    "                     to listen on (127.0.0.1)\n"
    "\n"
    "Exit status: 0 if every server ended with the trainer's weights, bit for bit; 1\n"
    "after a failure, 130 after a signal.\n";

/* in the order of their start */
enum { ENV, ROLLOUT, TRAINER = ROLLOUT + 2, VERIFY, N_PROCESSES };

static const char *const names[N_PROCESSES] = {"env", "rollout-0", "rollout-1", "trainer",
                                               "verify"};

enum { START_MS = 180000, PROOF_MS = 180000, GRACE_MS = 10000, TICK_MS = 20 };

static struct {
    const char *store, *dir, *deltawire, *on_trainer, *on_rollouts, *env_host,
        *rollout_host;
    uint64_t n_steps, n_warmup, n_answers, seed;
    bool no_sync, restart;
} args = {.on_trainer = "",
          .on_rollouts = "",
          .env_host = "127.0.0.1",
          .rollout_host = "127.0.0.1",
          .n_steps = 500,
          .n_warmup = 800,
          .n_answers = 8,
          .seed = 1};

static struct {
    char dir[400], programs[400], stream[600];
    bool made; /* the directory */
    struct {
        pid_t pid;  /* 0: it does not run */
        int status; /* after its end */
        char url[128];
    } all[N_PROCESSES];
    FILE *said;       /* what the trainer prints */
    char trained[64]; /* version and digest of its weights, at the end */
} demo;

/* ---- the end ---- */

static bool has_ended(size_t who)
{
    if (demo.all[who].pid != 0 &&
        waitpid(demo.all[who].pid, &demo.all[who].status, WNOHANG) == demo.all[who].pid)
        demo.all[who].pid = 0;
    return demo.all[who].pid == 0;
}

static dw_status remove_entry(void *context, const dw_store_entry *entry, dw_error *err)
{
    return dw_store_remove(context, entry->key, err);
}

static void remove_stream(void)
{
    dw_error err;
    dw_store *store = NULL;
    if (dw_store_open(&store, demo.stream, NULL, &err) != DW_OK ||
        dw_store_list(store, "", NULL, remove_entry, store, &err) != DW_OK)
        program_fail("wordle-demo: objects stay in the store", &err);
    dw_store_close(store);
}

static void remove_directory(void)
{
    const pid_t pid = fork();
    if (pid == 0) {
        execlp("rm", "rm", "-rf", "--", demo.dir, (char *)NULL);
        _exit(127);
    }
    waitpid(pid, NULL, 0);
}

static _Noreturn void leave(int status)
{
    const uint64_t end_ms = program_clock_ms() + GRACE_MS;
    for (size_t i = 0; i < N_PROCESSES; i++)
        if (!has_ended(i))
            kill(-demo.all[i].pid, SIGTERM);
    for (size_t i = 0; i < N_PROCESSES; i++)
        while (!has_ended(i)) {
            if (program_clock_ms() > end_ms)
                kill(-demo.all[i].pid, SIGKILL);
            usleep(TICK_MS * 1000);
        }
    if (demo.made && args.store)
        remove_stream();
    if (demo.made && !args.dir)
        remove_directory();
    exit(status);
}

static _Noreturn __attribute__((format(printf, 1, 2))) void fail(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fflush(stdout);
    fputs("wordle-demo: ", stderr);
    vfprintf(stderr, format, list);
    fputs("\n", stderr);
    va_end(list);
    leave(1);
}

/* The process has ended, and was not asked to. */
static _Noreturn void fail_of(size_t who)
{
    const int status = demo.all[who].status;
    char path[512], line[512], last[512] = "it said nothing";
    if (WIFSIGNALED(status))
        fail("%s was killed by signal %d; all others are ended too", names[who],
             WTERMSIG(status));
    snprintf(path, sizeof path, "%s/%s.err", demo.dir, names[who]);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file))
        if (line[0] != '\n')
            snprintf(last, sizeof last, "%.*s", (int)strcspn(line, "\n"), line);
    if (file)
        fclose(file);
    fail("%s has ended with status %d: %s", names[who], WEXITSTATUS(status), last);
}

static void tick(void)
{
    if (program_take_end(TICK_MS))
        leave(130);
}

/* ---- processes ---- */

typedef struct command {
    char *words[64];
    size_t n_words;
    char text[8192]; /* of the words */
    size_t n_text;
} command;

__attribute__((format(printf, 2, 3))) static void add(command *c, const char *format, ...)
{
    const size_t room = sizeof c->text - c->n_text;
    va_list list;
    va_start(list, format);
    const int n = vsnprintf(c->text + c->n_text, room, format, list);
    va_end(list);
    if (n < 0 || (size_t)n >= room || c->n_words + 2 > sizeof c->words / sizeof *c->words)
        fail("%.40s...: the command is too long", c->text);
    c->words[c->n_words++] = c->text + c->n_text;
    c->n_text += (size_t)n + 1;
}

static void add_words(command *c, const char *words)
{
    for (size_t n; *(words += strspn(words, " ")); words += n)
        add(c, "%.*s", (int)(n = strcspn(words, " ")), words);
}

static void add_number(command *c, const char *option, uint64_t value)
{
    add(c, "%s", option);
    add(c, "%" PRIu64, value);
}

static void add_listen(command *c, const char *host, size_t who)
{
    const char *port = strrchr(demo.all[who].url, ':'); /* it keeps that of its start */
    add(c, "--listen");
    add(c, "%s:%s", host, port ? port + 1 : "0");
}

static void open_as(int fd, size_t who, const char *kind)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s.%s", demo.dir, names[who], kind);
    dup2(open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666), fd);
}

static void launch(size_t who, command *c)
{
    const pid_t parent = getpid();
    fflush(NULL);
    const pid_t pid = fork();
    if (pid < 0)
        fail("%s: cannot be started: %s", names[who], strerror(errno));
    if (pid == 0) {
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        signal(SIGPIPE, SIG_DFL);
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
        open_as(STDOUT_FILENO, who, "log");
        open_as(STDERR_FILENO, who, "err");
        if (getppid() == parent)
            execvp(c->words[0], c->words);
        dprintf(STDERR_FILENO, "%s: %s\n", c->words[0], strerror(errno));
        _exit(127);
    }
    setpgid(pid, pid); /* whoever of both is first */
    demo.all[who].pid = pid;
}

/* Waits for the line that names the address. */
static void read_address(size_t who)
{
    static const char says[] = "listening on ";
    const uint64_t end_ms = program_clock_ms() + START_MS;
    char path[512], line[256], *url = demo.all[who].url;
    snprintf(path, sizeof path, "%s/%s.log", demo.dir, names[who]);
    for (url[0] = '\0'; url[0] == '\0'; tick()) {
        FILE *file = fopen(path, "re");
        while (file && fgets(line, sizeof line, file))
            if (strncmp(line, says, strlen(says)) == 0 && strchr(line, '\n'))
                snprintf(url, sizeof demo.all[who].url, "%.*s",
                         (int)strcspn(line + strlen(says), "\n"), line + strlen(says));
        if (file)
            fclose(file);
        if (has_ended(who))
            fail_of(who);
        if (program_clock_ms() > end_ms)
            fail("%s: does not listen after %d s", names[who], START_MS / 1000);
    }
}

static void start(size_t who)
{
    command c = {0};
    if (who == ENV) {
        add(&c, "%s/wordle-env", demo.programs);
        add_listen(&c, args.env_host, who);
        add_number(&c, "--answers", args.n_answers);
    } else if (who < TRAINER) {
        add_words(&c, args.on_rollouts);
        add(&c, "%s/wordle-rollout", demo.programs);
        add(&c, "--stream");
        add(&c, "%s", demo.stream);
        add_listen(&c, args.rollout_host, who);
    } else if (who == TRAINER) {
        add_words(&c, args.on_trainer);
        add(&c, "%s/wordle-train", demo.programs);
        add(&c, "--store");
        add(&c, "%s", demo.stream);
        add(&c, "--state");
        add(&c, "%s/trainer", demo.dir);
        add(&c, "--metrics");
        add(&c, "%s/train.jsonl", demo.dir);
        add(&c, "--env");
        add(&c, "%s", demo.all[ENV].url);
        for (size_t i = ROLLOUT; i < TRAINER; i++) {
            add(&c, "--server");
            add(&c, "%s", demo.all[i].url);
        }
        add_number(&c, "--warmup", args.n_warmup);
        add_number(&c, "--steps", args.n_steps);
        add_number(&c, "--seed", args.seed);
        add_number(&c, "--evaluate", 16);
        add_words(&c, args.no_sync ? "--no-sync" : "");
    } else {
        add_words(&c, args.on_trainer);
        add(&c, "%s", args.deltawire);
        add(&c, "verify");
        add(&c, "%s", demo.stream);
    }
    launch(who, &c);
    if (who < TRAINER)
        read_address(who);
}

/* ---- the run ---- */

/* Repeats what the trainer has said since the last time. */
static void listen_to_trainer(void)
{
    char path[512], line[512];
    snprintf(path, sizeof path, "%s/trainer.log", demo.dir);
    if (!demo.said && !(demo.said = fopen(path, "re")))
        return;
    for (clearerr(demo.said); fgets(line, sizeof line, demo.said);) {
        const char *at = strstr(line, "trained: ");
        fputs(line, stdout);
        if (at)
            snprintf(demo.trained, sizeof demo.trained, "%.*s",
                     (int)strcspn(at + 9, "\n"), at + 9);
    }
    fflush(stdout);
}

static void watch(void)
{
    bool done = false;
    while (!done) {
        tick();
        done = has_ended(TRAINER) && demo.all[TRAINER].status == 0;
        listen_to_trainer();
        for (size_t i = 0; i <= TRAINER; i++) {
            if (!has_ended(i) || (i == TRAINER && done))
                continue;
            if (!args.restart || !WIFSIGNALED(demo.all[i].status))
                fail_of(i);
            printf("%s was killed, and is started again\n", names[i]);
            start(i);
        }
    }
}

/* Version and digest of the weights that the server computes with. Whether it has the
 * trainer's version. */
static bool ask_digest(http_client *client, size_t who, char held[64])
{
    char url[160];
    const char *version = "-", *digest = "-";
    dw_error err;
    json_t *answer;
    snprintf(url, sizeof url, "%s/digest", demo.all[who].url);
    if (http_client_ask(client, url, NULL, 5000, &answer, &err) == DW_OK)
        json_unpack(answer, "{s:s, s:s}", "weight_version", &version, "digest", &digest);
    const int n = snprintf(held, 64, "version %.20s ", version);
    snprintf(held + n, 64 - (size_t)n, "digest %.16s", digest);
    json_decref(answer);
    return strncmp(held, demo.trained, (size_t)n) == 0;
}

/* Every server computes with the trainer's weights, and the stream is sound. */
static void prove(void)
{
    const uint64_t end_ms = program_clock_ms() + PROOF_MS;
    bool all_equal = demo.trained[0] != '\0';
    char held[64];
    dw_error err;
    http_client *client;
    if (http_client_new(&client, NULL, &err) != DW_OK)
        fail("%s", err.text);
    printf("\n  trainer    %s\n", demo.trained);
    for (size_t i = ROLLOUT; i < TRAINER; i++) {
        while (!ask_digest(client, i, held) && program_clock_ms() < end_ms) {
            tick(); /* it is still updating */
            if (has_ended(i))
                fail_of(i);
        }
        const bool equal = strcmp(held, demo.trained) == 0;
        printf("  %s  %s  %s\n", names[i], held, equal ? "equal" : "DIFFERS");
        fflush(stdout);
        all_equal = all_equal && equal;
    }
    http_client_free(client);
    start(VERIFY);
    while (!has_ended(VERIFY))
        tick();
    if (demo.all[VERIFY].status != 0)
        fail_of(VERIFY);
    printf("  every object of the stream was read and checked\n");
    if (!all_equal)
        fail("the servers do not compute with the trainer's weights");
}

/* ---- the beginning ---- */

static void find_programs(void)
{
    static char path[sizeof demo.programs + 32];
    const ssize_t n = readlink("/proc/self/exe", demo.programs, sizeof demo.programs - 1);
    char *slash = n > 0 ? strrchr(demo.programs, '/') : NULL;
    if (!slash)
        fail("/proc/self/exe: cannot be read");
    *slash = '\0';
    snprintf(path, sizeof path, "%s/../../deltawire", demo.programs);
    args.deltawire = args.deltawire ? args.deltawire : path;
}

static void make_directory(void)
{
    const char *parent = getenv("TMPDIR");
    const size_t room = sizeof demo.dir;
    const int n = args.dir ? snprintf(demo.dir, room, "%s", args.dir)
                           : snprintf(demo.dir, room, "%s/wordle-demo-XXXXXX",
                                      parent && *parent ? parent : "/tmp");
    if (n >= (int)room)
        fail("%.40s...: is too long a path", demo.dir);
    if (args.dir ? mkdir(demo.dir, 0777) != 0 : !mkdtemp(demo.dir))
        fail("%s: cannot be made: %s", demo.dir, strerror(errno));
    demo.made = true;
    char *full = realpath(demo.dir, NULL);
    if (!full || strlen(full) >= room)
        fail("%.40s...: is too long a path", demo.dir);
    strcpy(demo.dir, full);
    free(full);
    const char *name = strrchr(demo.dir, '/');
    const int n_url =
        args.store
            ? snprintf(demo.stream, sizeof demo.stream, "%s%s", args.store, name)
            : snprintf(demo.stream, sizeof demo.stream, "file://%s/bucket", demo.dir);
    if (n_url >= (int)sizeof demo.stream)
        fail("--store: is too long");
}

int main(int argc, char **argv)
{
    const program_option options[] = {
        {.name = "store", .text = &args.store},
        {.name = "steps", .number = &args.n_steps, .max = 1000000},
        {.name = "warmup", .number = &args.n_warmup, .max = 1000000},
        {.name = "answers", .number = &args.n_answers, .min = 1, .max = 1024},
        {.name = "seed", .number = &args.seed, .max = UINT32_MAX},
        {.name = "no-sync", .flag = &args.no_sync},
        {.name = "restart", .flag = &args.restart},
        {.name = "dir", .text = &args.dir},
        {.name = "deltawire", .text = &args.deltawire},
        {.name = "on-trainer", .text = &args.on_trainer},
        {.name = "on-rollouts", .text = &args.on_rollouts},
        {.name = "env-host", .text = &args.env_host},
        {.name = "rollout-host", .text = &args.rollout_host},
    };
    program_options("wordle-demo", help, options, sizeof options / sizeof *options, argc,
                    argv);
    program_block_signals();
    curl_global_init(CURL_GLOBAL_ALL);
    find_programs();
    make_directory();
    for (size_t i = ENV; i <= TRAINER; i++)
        start(i);
    watch();
    prove();
    leave(0);
}
