/* The program of the tiny container that proves GPU passthrough: no libc, a few hundred bytes, nothing to install.
 *
 * Prints what a GPU leaves inside a container, one line each:
 *   dev:nvidia0            entries of /dev whose name starts with nvidia, or dxg (WSL2)
 *   mount:/usr/lib/...     mount points with "nvidia" or "libcuda" in them
 *   env:NVIDIA_...=...     variables that start with NVIDIA_ or CUDA_
 * and "done" at the end. Built by tools/build_gpu_probe.py into envforge/data/gpu-probe-<machine>.
 */

typedef unsigned long word;

#if defined(__x86_64__)
enum { SYS_READ = 0, SYS_WRITE = 1, SYS_OPENAT = 257, SYS_GETDENTS = 217, SYS_EXIT = 231 };
static long call(long n, long a, long b, long c) {
    long r;
    register long d __asm__("r10") = 0;
    __asm__ volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(d) : "rcx", "r11", "memory");
    return r;
}
__asm__(".globl _start\n_start:\n mov %rsp,%rdi\n and $-16,%rsp\n call begin\n");
#elif defined(__aarch64__)
enum { SYS_READ = 63, SYS_WRITE = 64, SYS_OPENAT = 56, SYS_GETDENTS = 61, SYS_EXIT = 94 };
static long call(long n, long a, long b, long c) {
    register long x8 __asm__("x8") = n;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = 0;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
    return x0;
}
__asm__(".globl _start\n_start:\n mov x0,sp\n bl begin\n");
#endif

static char buffer[1 << 16];

static word length(const char *s) { word n = 0; while (s[n]) n++; return n; }
static int starts(const char *s, const char *with) {
    while (*with) if (*s++ != *with++) return 0;
    return 1;
}
static int holds(const char *s, word n, const char *what) {
    word m = length(what);
    for (word i = 0; i + m <= n; i++) {
        word j = 0;
        while (j < m && s[i + j] == what[j]) j++;
        if (j == m) return 1;
    }
    return 0;
}
static void put(const char *kind, const char *s, word n) {
    call(SYS_WRITE, 1, (long)kind, (long)length(kind));
    call(SYS_WRITE, 1, (long)s, (long)n);
    call(SYS_WRITE, 1, (long)"\n", 1);
}
static long open_at(const char *path) { return call(SYS_OPENAT, -100, (long)path, 0); }

static void devices(void) {
    long fd = open_at("/dev"), n;
    if (fd < 0) return;
    while ((n = call(SYS_GETDENTS, fd, (long)buffer, sizeof buffer)) > 0) {
        for (long at = 0; at < n; at += *(unsigned short *)(buffer + at + 16)) {
            char *name = buffer + at + 19;
            if (starts(name, "nvidia") || starts(name, "dxg")) put("dev:", name, length(name));
        }
    }
}

/* Field 5 of a line of /proc/self/mountinfo is the mount point. */
static void mounts(void) {
    long fd = open_at("/proc/self/mountinfo"), n;
    word used = 0;
    if (fd < 0) return;
    while ((n = call(SYS_READ, fd, (long)(buffer + used), (long)(sizeof buffer - used))) > 0) {
        word end = used + (word)n, line = 0;
        for (word i = 0; i < end; i++) {
            if (buffer[i] != '\n') continue;
            word at = line, field = 1;
            while (at < i && field < 5) if (buffer[at++] == ' ') field++;
            word stop = at;
            while (stop < i && buffer[stop] != ' ') stop++;
            if (holds(buffer + at, stop - at, "nvidia") || holds(buffer + at, stop - at, "libcuda"))
                put("mount:", buffer + at, stop - at);
            line = i + 1;
        }
        for (used = 0; line + used < end; used++) buffer[used] = buffer[line + used];
        if (used == sizeof buffer) used = 0;
    }
}

__attribute__((used)) void begin(word *stack) {
    char **env = (char **)(stack + 1 + stack[0] + 1);
    for (; *env; env++)
        if (starts(*env, "NVIDIA_") || starts(*env, "CUDA_")) put("env:", *env, length(*env));
    devices();
    mounts();
    put("done", "", 0);
    call(SYS_EXIT, 0, 0, 0);
}
