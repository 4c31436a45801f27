// The smallest process that can be a pod's first: waits, reaps what is left to it, and ends when asked.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void finish(int number) {
    (void)number;
    _exit(0);
}

static void reap(int number) {
    (void)number;
    while (waitpid(-1, 0, WNOHANG) > 0) {
    }
}

int main(void) {
    signal(SIGTERM, finish);
    signal(SIGINT, finish);
    signal(SIGCHLD, reap);
    for (;;) {
        pause();
    }
}
