/* A libnvidia-ml.so.1 for tests. It has no card: it answers what the file `control` beside it says.
 *
 * The file is read anew at every call, so that another process can steer a running one. Lines, in any order:
 *   init CODE | driver VERSION | count N | sizing ring|empty|true | unfiltered
 *   fail FUNCTION CODE [INDEX] | hang FUNCTION SECONDS | crash FUNCTION
 *   device INDEX UUID PCI UTIL ENC DEC TOTAL FREE USED MIG CLOCK PSTATE NAME...
 *   sample INDEX PID AT_US|now SM MEM ENC DEC
 *   process INDEX compute|graphics|mps PID BYTES|none
 * Percentages may be "none": the call is not supported then. If the file `calls` is there, each call is
 * appended. A handle of a lost card, or of before a shutdown, must not be used again: doing so aborts, as the
 * real library crashes. FUNCTION `*` is every function that has a device.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, LOST = 15 };
enum { DEVICES = 16, ROWS = 8192, HANDLES = 65536, NONE = -1, RING = 100 };

typedef unsigned int uint;
typedef unsigned long long u64;
typedef struct { int index; int dead; } handle;

typedef struct {
    int there;
    char uuid[96], pci[32], name[96];
    long long util, enc, dec, total, free, used, mig, clock, pstate;
} card;
typedef struct { int index; uint pid; u64 at, sm, mem, enc, dec; } sample;
typedef struct { int index, kind; uint pid; u64 bytes; } process;

static char text[1 << 20];
static card cards[DEVICES];
static sample samples[ROWS];
static process processes[ROWS];
static handle handles[HANDLES];
static int sample_count, process_count, handle_count, first_live, initialised, count_override, init_code;
static int unfiltered;
static char driver[80], sizing[16];

static const char *beside(const char *name) {
    static char path[4096];
    Dl_info info;
    if (!dladdr((void *)beside, &info)) abort();
    const char *slash = strrchr(info.dli_fname, '/');
    snprintf(path, sizeof path, "%.*s/%s", slash ? (int)(slash - info.dli_fname) : 1, slash ? info.dli_fname : ".", name);
    return path;
}

static u64 now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (u64)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void read_text(void) {
    text[0] = 0;
    int fd = open(beside("control"), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
}

static long long number(const char *word) { return strcmp(word, "none") ? atoll(word) : NONE; }

static void parse_line(char *line, const char *function, int index, int *code) {
    char a[96], b[96], c[32], words[9][32], name[96] = "";
    int i, x;
    u64 pid;
    if (sscanf(line, "init %d", &x) == 1) init_code = x;
    else if (sscanf(line, "driver %79s", driver) == 1) return;
    else if (sscanf(line, "count %d", &x) == 1) count_override = x;
    else if (sscanf(line, "sizing %15s", sizing) == 1) return;
    else if (!strcmp(line, "unfiltered")) unfiltered = 1;
    else if (sscanf(line, "fail %95s %d %d", a, &x, &i) == 3) {
        if (i == index && (!strcmp(a, function) || !strcmp(a, "*"))) *code = x;
    } else if (sscanf(line, "fail %95s %d", a, &x) == 2) {
        if (!strcmp(a, function) || (!strcmp(a, "*") && index >= 0)) *code = x;
    } else if (sscanf(line, "crash %95s", a) == 1) {
        if (!strcmp(a, function)) abort();
    } else if (sscanf(line, "device %d %95s %31s %31s %31s %31s %31s %31s %31s %31s %31s %31s %95[^\n]", &i, a, c,
                      words[0], words[1], words[2], words[3], words[4], words[5], words[6], words[7], words[8], name) == 13) {
        card *d = &cards[i];
        long long *to[] = {&d->util, &d->enc, &d->dec, &d->total, &d->free, &d->used, &d->mig, &d->clock, &d->pstate};
        d->there = 1;
        strcpy(d->uuid, a), strcpy(d->pci, c), strcpy(d->name, name);
        for (x = 0; x < 9; x++) *to[x] = number(words[x]);
    } else if (sample_count < ROWS && sscanf(line, "sample %d %llu %31s %31s %31s %31s %31s", &i, &pid, words[0], words[1],
                                             words[2], words[3], words[4]) == 7) {
        u64 at = strcmp(words[0], "now") ? strtoull(words[0], 0, 10) : now_us();
        samples[sample_count++] = (sample){i, (uint)pid, at, strtoull(words[1], 0, 10), strtoull(words[2], 0, 10),
                                           strtoull(words[3], 0, 10), strtoull(words[4], 0, 10)};
    } else if (process_count < ROWS && sscanf(line, "process %d %95s %llu %95s", &i, a, &pid, b) == 4) {
        int kind = !strcmp(a, "compute") ? 0 : !strcmp(a, "graphics") ? 1 : 2;
        processes[process_count++] = (process){i, kind, (uint)pid, strcmp(b, "none") ? strtoull(b, 0, 10) : ~0ULL};
    }
}

static void parse(const char *function, int index, int *code) {
    memset(cards, 0, sizeof cards);
    sample_count = process_count = unfiltered = init_code = 0;
    count_override = NONE;
    strcpy(driver, "570.0"), strcpy(sizing, "ring");
    read_text();
    char *rest = text, *line;
    while ((line = strsep(&rest, "\n")))
        if (*line) parse_line(line, function, index, code);
}

static double hang_s(const char *function) {
    char name[96];
    double seconds;
    read_text();
    for (char *rest = text, *line; (line = strsep(&rest, "\n"));)
        if (sscanf(line, "hang %95s %lf", name, &seconds) == 2 && !strcmp(name, function)) return seconds;
    return 0;
}

/* What every call begins with: write it down, hang, crash or fail as told. */
static int begin(const char *function, int index) {
    int fd = open(beside("calls"), O_WRONLY | O_APPEND | O_CLOEXEC);
    if (fd >= 0) {
        char line[128];
        int n = snprintf(line, sizeof line, "%s\n", function);
        if (write(fd, line, n) != n) abort();
        close(fd);
    }
    u64 began = now_us();
    while ((now_us() - began) / 1e6 < hang_s(function)) usleep(10000);
    int code = OK;
    parse(function, index, &code);
    if (!initialised && strcmp(function, "nvmlInitWithFlags")) return UNINITIALIZED;
    return code;
}

static int give_handle(int index, void **device) {
    if (handle_count == HANDLES) abort();
    handles[handle_count] = (handle){index, 0};
    *device = &handles[handle_count++];
    return OK;
}

/* For calls with a device: its card, or the code to return. */
static int on(const char *function, void *device, card **found) {
    handle *h = device;
    if (h < handles + first_live || h >= handles + handle_count || h->dead) {
        fprintf(stderr, "fake NVML: %s with a worthless handle\n", function);
        abort();
    }
    int code = begin(function, h->index);
    *found = &cards[h->index];
    if (code == OK && !(*found)->there) code = LOST;
    if (code == LOST) h->dead = 1;
    return code;
}

#define ON(function) \
    card *d; \
    int code = on(function, device, &d); \
    if (code) return code;

int nvmlInitWithFlags(uint flags) {
    (void)flags;
    int code = begin("nvmlInitWithFlags", -1);
    if (code == OK) code = init_code;
    if (code == OK) initialised++;
    return code;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) {
    int code = begin("nvmlShutdown", -1);
    if (code) return code;
    if (--initialised == 0) first_live = handle_count;
    return OK;
}

const char *nvmlErrorString(int code) { return code ? "an error of the fake" : "Success"; }

int nvmlSystemGetDriverVersion(char *into, uint size) {
    int code = begin("nvmlSystemGetDriverVersion", -1);
    if (!code) snprintf(into, size, "%s", driver);
    return code;
}

int nvmlDeviceGetCount_v2(uint *count) {
    int code = begin("nvmlDeviceGetCount_v2", -1), n = 0;
    while (n < DEVICES && cards[n].there) n++;
    *count = count_override == NONE ? n : count_override;
    return code;
}

int nvmlDeviceGetHandleByIndex_v2(uint index, void **device) {
    int code = begin("nvmlDeviceGetHandleByIndex_v2", index);
    if (code) return code;
    if (count_override != NONE && (int)index >= count_override) return INVALID;
    return index < DEVICES && cards[index].there ? give_handle(index, device) : INVALID;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    int code = begin("nvmlDeviceGetHandleByUUID", -1);
    if (code) return code;
    for (int i = 0; i < DEVICES && (count_override == NONE || i < count_override); i++)
        if (cards[i].there && !strcasecmp(cards[i].uuid, uuid)) {
            parse("nvmlDeviceGetHandleByUUID", i, &code);
            return code ? code : give_handle(i, device);
        }
    return NOT_FOUND;
}

int nvmlDeviceGetUUID(void *device, char *into, uint size) {
    ON("nvmlDeviceGetUUID")
    snprintf(into, size, "%s", d->uuid);
    return OK;
}

int nvmlDeviceGetName(void *device, char *into, uint size) {
    ON("nvmlDeviceGetName")
    snprintf(into, size, "%s", d->name);
    return OK;
}

typedef struct { char legacy[16]; uint domain, bus, device, id, subsystem; char bus_id[32]; } pci_info;

int nvmlDeviceGetPciInfo_v3(void *device, pci_info *into) {
    ON("nvmlDeviceGetPciInfo_v3")
    memset(into, 0, sizeof *into);
    snprintf(into->bus_id, sizeof into->bus_id, "%s", d->pci);
    return OK;
}

int nvmlDeviceGetMigMode(void *device, uint *current, uint *pending) {
    ON("nvmlDeviceGetMigMode")
    if (d->mig == NONE) return NOT_SUPPORTED;
    *current = *pending = (uint)d->mig;
    return OK;
}

int nvmlDeviceGetUtilizationRates(void *device, uint *rates) {
    ON("nvmlDeviceGetUtilizationRates")
    if (d->util == NONE) return NOT_SUPPORTED;
    rates[0] = (uint)d->util, rates[1] = 0;
    return OK;
}

static int engine(long long percent, uint *util, uint *period) {
    if (percent == NONE) return NOT_SUPPORTED;
    *util = (uint)percent, *period = 166666;
    return OK;
}

int nvmlDeviceGetEncoderUtilization(void *device, uint *util, uint *period) {
    ON("nvmlDeviceGetEncoderUtilization")
    return engine(d->enc, util, period);
}

int nvmlDeviceGetDecoderUtilization(void *device, uint *util, uint *period) {
    ON("nvmlDeviceGetDecoderUtilization")
    return engine(d->dec, util, period);
}

typedef struct { u64 total, free, used; } memory_v1;
typedef struct { uint version; u64 total, reserved, free, used; } memory_v2;

int nvmlDeviceGetMemoryInfo(void *device, memory_v1 *into) {
    ON("nvmlDeviceGetMemoryInfo")
    if (d->total == NONE) return NOT_SUPPORTED;
    *into = (memory_v1){d->total, d->free, d->used};
    return OK;
}

int nvmlDeviceGetMemoryInfo_v2(void *device, memory_v2 *into) {
    ON("nvmlDeviceGetMemoryInfo_v2")
    if (into->version != 0x02000028) return 25;
    if (d->total == NONE) return NOT_SUPPORTED;
    *into = (memory_v2){into->version, d->total, 0, d->free, d->used};
    return OK;
}

int nvmlDeviceGetClockInfo(void *device, uint kind, uint *clock) {
    ON("nvmlDeviceGetClockInfo")
    if (kind != 1 || d->clock == NONE) return NOT_SUPPORTED;
    *clock = (uint)d->clock;
    return OK;
}

int nvmlDeviceGetPerformanceState(void *device, int *state) {
    ON("nvmlDeviceGetPerformanceState")
    if (d->pstate == NONE) return NOT_SUPPORTED;
    *state = (int)d->pstate;
    return OK;
}

typedef struct { uint pid; u64 bytes; uint gpu_instance, compute_instance; } process_info;

static int list(const char *function, int kind, void *device, uint *count, process_info *into) {
    card *d;
    int code = on(function, device, &d), index = ((handle *)device)->index;
    uint room = *count, n = 0;
    if (code) return code;
    for (int i = 0; i < process_count; i++) {
        process *p = &processes[i];
        if (p->index != index || p->kind != kind) continue;
        if (into && n < room) into[n] = (process_info){p->pid, p->bytes, ~0u, ~0u};
        n++;
    }
    *count = n;
    return n > room ? TOO_SMALL : OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, uint *count, process_info *into) {
    return list("nvmlDeviceGetComputeRunningProcesses_v3", 0, device, count, into);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, uint *count, process_info *into) {
    return list("nvmlDeviceGetGraphicsRunningProcesses_v3", 1, device, count, into);
}

int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *device, uint *count, process_info *into) {
    return list("nvmlDeviceGetMPSComputeRunningProcesses_v3", 2, device, count, into);
}

typedef struct { uint pid; u64 at; uint sm, mem, enc, dec; } process_use;

int nvmlDeviceGetProcessUtilization(void *device, process_use *into, uint *count, u64 since) {
    ON("nvmlDeviceGetProcessUtilization")
    int index = ((handle *)device)->index;
    uint room = *count, n = 0;
    for (int i = 0; i < sample_count; i++) {
        sample *s = &samples[i];
        if (s->index != index || (s->at <= since && !unfiltered)) continue;
        if (into && n < room) into[n] = (process_use){s->pid, s->at, (uint)s->sm, (uint)s->mem, (uint)s->enc, (uint)s->dec};
        n++;
    }
    if (!into && !strcmp(sizing, "empty")) return *count = 0, OK;
    /* The real one tells the size of its ring, not how much there is (go-nvml #11). */
    if (!into && !strcmp(sizing, "ring")) return *count = RING > n ? RING : n, TOO_SMALL;
    if (!n) return NOT_FOUND;
    *count = n;
    return n > room ? TOO_SMALL : OK;
}
