/* Many connections, most of them slow. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#include "unit/suite.h"

#include "agent/clients.h"
#include "agent_fixture.h"

enum { N_SLOW = DW_CLIENTS_MAX + 2 * DW_CLIENTS_SPARE };

typedef struct slow_crowd {
    int fds[N_SLOW];
    atomic_bool is_over;
} slow_crowd;

/* Each sends a byte now and then, so none is silent long enough to be closed. */
static void *dribble(void *argument)
{
    slow_crowd *clients = argument;
    while (!atomic_load(&clients->is_over)) {
        for (int i = 0; i < N_SLOW; i++)
            http_send(clients->fds[i], "x");
        usleep(100000);
    }
    return NULL;
}

/* More connections than there is room for, and none ends its request: a new one is
 * answered, and the oldest is closed. */
TEST_WITH(test_too_many, agent_begin, agent_end)
{
    slow_crowd clients = {.is_over = false};
    pthread_t thread;
    char byte;
    for (int i = 0; i < N_SLOW; i++) {
        clients.fds[i] = http_connect(port);
        http_send(clients.fds[i], "GET /healthz HTTP/1.1\r\nX: ");
    }
    assert_int_equal(pthread_create(&thread, NULL, dribble, &clients), 0);
    expect_alive();
    assert_true(recv(clients.fds[0], &byte, 1, 0) <= 0 && errno != EAGAIN);
    atomic_store(&clients.is_over, true);
    pthread_join(thread, NULL);
    /* the last of them is still open and works */
    const int last = clients.fds[N_SLOW - 1];
    http_send(last, "\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    http_receive(last, &reply);
    assert_int_equal(reply.code, 200);
    for (int i = 0; i < N_SLOW; i++)
        close(clients.fds[i]);
    expect_alive();
}

/* A client that sends requests is kept, and clients without requests are closed. */
TEST_WITH(test_users_stay, agent_begin, agent_end)
{
    static const char ask[] = "HEAD /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    enum { N = 3 * DW_CLIENTS_MAX };
    int user = http_connect(port), fds[N];
    char answer[1024];
    for (int i = 0; i < N; i++) {
        fds[i] = http_connect(port);
        http_send(fds[i], "GET /");
        usleep(1000); /* so that their times in milliseconds differ */
        http_send(user, ask);
        assert_true(recv(user, answer, sizeof answer, 0) > 0);
        assert_int_equal(strncmp(answer, "HTTP/1.1 200", 12), 0);
    }
    for (int i = 0; i < N; i++)
        close(fds[i]);
    close(user);
}

RUN_TESTS(NULL, NULL)
