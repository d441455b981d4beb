/* A wall clock of its own for each session of processes: preloaded, it adds a step to the machine's.
 *
 * The steps, in nanoseconds, are in a file that GEMINI_LAB_CLOCKS names, one for each number that a
 * session's leader may have modulo their count. Clocks that nobody can set are left alone.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { NS = 1000000000 };

static int (*machines)(clockid_t, struct timespec *);
static volatile const long long *step_ns;

__attribute__((constructor)) static void begin(void) {
    machines = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("GEMINI_LAB_CLOCKS");
    struct stat found;
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    if (fstat(fd, &found) == 0 && found.st_size >= (off_t)sizeof *step_ns) {
        long long *all = mmap(NULL, found.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (all != MAP_FAILED)
            step_ns = all + getsid(0) % (found.st_size / (off_t)sizeof *all);
    }
    close(fd);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (!machines)
        begin(); /* another library's constructor asks for the time first */
    int failed = machines(clock, now);
    if (!failed && step_ns && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        long long ns = now->tv_nsec + *step_ns % NS;
        now->tv_sec += *step_ns / NS + (ns >= NS) - (ns < 0);
        now->tv_nsec = ns + (ns < 0 ? NS : 0) - (ns >= NS ? NS : 0);
    }
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec exact;
    int failed = clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *also) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (also)
        *also = exact.tv_sec;
    return exact.tv_sec;
}
