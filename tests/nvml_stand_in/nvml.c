/* A stand-in for libnvidia-ml.so.1 that plays a trace from the file that NVML_STAND_IN names.
 *
 * The layouts and numbers are those that nvidia-ml-py declares, so what is under test is the real
 * pynvml and all that is built on it. What passes on it has not run on a GPU.
 *
 * A line of the trace is:  SECONDS GPU KEY VALUE...
 *   SECONDS  from when on the line is in force; a later line for the same GPU and key takes over
 *   GPU      any small number, or - for what is of no GPU; `part_of N` makes one a part (MIG) of N
 *   KEY      a figure (see below), or a function's name, or * for every function of that GPU
 *   VALUE    the value; for a function !CODE to be refused, ~SECONDS to wait first, ok for neither
 * `# ...` is a comment. A key that no line has is Not Supported. Time runs from when the trace is
 * loaded; nvml_stand_in_at() sets it.
 *
 * Keys of a GPU: uuid name memory.total memory.used utilisation memory_utilisation clock.N
 * max_clock.N temperature threshold.N power_mw power_limit_mw energy_mj field.ID fan
 * reasons mode capability processes (PID:BYTES ...) mig part_of.
 * Of none: driver cuda process.PID. `self` is this process's number.
 */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, ARGUMENT_VERSION_MISMATCH = 25
};

typedef int nvmlReturn_t;
typedef void *nvmlDevice_t;
typedef unsigned long long u64;

typedef struct { u64 total, free, used; } Memory;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned pid; u64 used; unsigned instance, compute; } ProcessInfo;
typedef struct {
    unsigned field, scope;
    int64_t timestamp, latency;
    int type, result;
    union { double d; unsigned ui; u64 ull; } value;
} FieldValue;
typedef struct { double from; int gpu; char key[64]; char value[512]; } Line;

#define NO_GPU (-1)
#define MOST_GPUS 64

static Line *lines;
static int line_count;
static double begun, set_at;
static int sessions, generation = 1;
static struct { const char *name; unsigned long count; } called[64];

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static double moment(void) { return set_at >= 0 ? set_at : seconds() - begun; }

/* The trace's time stands still at this moment; a negative one lets it run again. */
void nvml_stand_in_at(double at) { set_at = at; }

/* How often a function has been called. */
unsigned long nvml_stand_in_calls(const char *name)
{
    for (int n = 0; n < 64 && called[n].name; n++)
        if (!strcmp(called[n].name, name)) return called[n].count;
    return 0;
}

int nvml_stand_in_sessions(void) { return sessions; }

/* Forget all, and play the trace of this file. */
void nvml_stand_in_play(const char *path)
{
    char text[1024], gpu[16];
    FILE *file = path ? fopen(path, "r") : NULL;
    begun = seconds();
    set_at = -1;
    line_count = sessions = 0;
    generation++;
    memset(called, 0, sizeof called);
    if (!file) return;
    while (fgets(text, sizeof text, file)) {
        Line line = {0};
        if (text[0] == '#' || sscanf(text, "%lf %15s %63s %511[^\n]", &line.from, gpu, line.key,
                                     line.value) < 4)
            continue;
        line.gpu = gpu[0] == '-' ? NO_GPU : atoi(gpu);
        lines = realloc(lines, (line_count + 1) * sizeof line);
        lines[line_count++] = line;
    }
    fclose(file);
}

__attribute__((constructor)) static void load(void) { nvml_stand_in_play(getenv("NVML_STAND_IN")); }

static const char *lookup(int gpu, const char *key)
{
    const char *value = NULL;
    double now = moment(), from = -1;
    for (int n = 0; n < line_count; n++)
        if (lines[n].gpu == gpu && lines[n].from <= now && lines[n].from >= from
            && !strcmp(lines[n].key, key)) {
            value = lines[n].value;
            from = lines[n].from;
        }
    return value;
}

static nvmlReturn_t obey(int gpu, const char *function)
{
    const char *order = lookup(gpu, function);
    if (!order) order = lookup(gpu, "*");
    if (order && order[0] == '~') usleep((useconds_t)(atof(order + 1) * 1e6));
    return order && order[0] == '!' ? atoi(order + 1) : SUCCESS;
}

static nvmlReturn_t begin(int gpu, const char *function)
{
    int n = 0;
    while (n < 63 && called[n].name && strcmp(called[n].name, function)) n++;
    called[n].name = function;
    called[n].count++;
    /* What is refused to all is refused to each. */
    nvmlReturn_t code = obey(NO_GPU, function);
    if (!code && strcmp(function, "nvmlInitWithFlags") && !sessions) code = UNINITIALIZED;
    if (!code && gpu != NO_GPU) code = obey(gpu, function);
    return code;
}

static nvmlDevice_t handle_of(int gpu)
{
    return (nvmlDevice_t)(uintptr_t)((generation << 8) + gpu + 1);
}

/* A handle is of one session: the next session's are others. */
static int gpu_of(nvmlDevice_t handle)
{
    uintptr_t number = (uintptr_t)handle;
    return number && (int)(number >> 8) == generation ? (int)(number & 255) - 1 : -2;
}

static int is_part(int gpu) { return lookup(gpu, "part_of") != NULL; }

/* The n-th whole GPU, or the n-th part of `whole`; -2 where there is none. */
static int nth(int n, int whole)
{
    for (int gpu = 0; gpu < MOST_GPUS; gpu++) {
        if (!lookup(gpu, "uuid")) continue;
        if (whole == NO_GPU ? is_part(gpu) : !is_part(gpu) || atoi(lookup(gpu, "part_of")) != whole)
            continue;
        if (n-- == 0) return gpu;
    }
    return -2;
}

#define GPU(function)                                        \
    int gpu = gpu_of(device);                                \
    nvmlReturn_t code = begin(gpu == -2 ? NO_GPU : gpu, function); \
    if (code) return code;                                   \
    if (gpu == -2) return INVALID_ARGUMENT

static nvmlReturn_t put(int gpu, const char *key, u64 *value)
{
    const char *text = lookup(gpu, key);
    if (!text) return NOT_SUPPORTED;
    *value = strtoull(text, NULL, 0);
    return SUCCESS;
}

static nvmlReturn_t put_small(int gpu, const char *key, unsigned *value)
{
    u64 wide = 0;
    nvmlReturn_t code = put(gpu, key, &wide);
    if (!code) *value = (unsigned)wide;
    return code;
}

static nvmlReturn_t put_numbered(int gpu, const char *key, unsigned number, u64 *value)
{
    char full[96];
    snprintf(full, sizeof full, "%s.%u", key, number);
    return put(gpu, full, value);
}

static nvmlReturn_t put_small_numbered(int gpu, const char *key, unsigned number, unsigned *value)
{
    u64 wide = 0;
    nvmlReturn_t code = put_numbered(gpu, key, number, &wide);
    if (!code) *value = (unsigned)wide;
    return code;
}

static nvmlReturn_t put_text(int gpu, const char *key, char *text, unsigned length)
{
    const char *value = lookup(gpu, key);
    if (!value) return NOT_SUPPORTED;
    if (strlen(value) >= length) return INSUFFICIENT_SIZE;
    strcpy(text, value);
    return SUCCESS;
}

#define SMALL(function, key)                                        \
    nvmlReturn_t function(nvmlDevice_t device, unsigned *value)     \
    {                                                               \
        GPU(#function);                                             \
        return put_small(gpu, key, value);                          \
    }
#define LARGE(function, key)                                        \
    nvmlReturn_t function(nvmlDevice_t device, u64 *value)          \
    {                                                               \
        GPU(#function);                                             \
        return put(gpu, key, value);                                \
    }

#define NUMBERED(function, key)                                                  \
    nvmlReturn_t function(nvmlDevice_t device, unsigned number, unsigned *value)  \
    {                                                                             \
        GPU(#function);                                                           \
        return put_small_numbered(gpu, key, number, value);                       \
    }
#define TEXT(function, key)                                                   \
    nvmlReturn_t function(nvmlDevice_t device, char *text, unsigned length)   \
    {                                                                         \
        GPU(#function);                                                       \
        return put_text(gpu, key, text, length);                              \
    }

nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    nvmlReturn_t code = begin(NO_GPU, "nvmlInitWithFlags");
    if (!code) sessions++;
    return code;
}

nvmlReturn_t nvmlShutdown(void)
{
    nvmlReturn_t code = begin(NO_GPU, "nvmlShutdown");
    if (sessions && --sessions == 0) generation++;
    return code;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *text, unsigned length)
{
    nvmlReturn_t code = begin(NO_GPU, "nvmlSystemGetDriverVersion");
    return code ? code : put_text(NO_GPU, "driver", text, length);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(unsigned *version)
{
    nvmlReturn_t code = begin(NO_GPU, "nvmlSystemGetCudaDriverVersion_v2");
    return code ? code : put_small(NO_GPU, "cuda", version);
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *text, unsigned length)
{
    char key[32];
    nvmlReturn_t code = begin(NO_GPU, "nvmlSystemGetProcessName");
    if (code) return code;
    snprintf(key, sizeof key, "process.%u", pid);
    if (!lookup(NO_GPU, key) && pid == (unsigned)getpid()) strcpy(key, "process.self");
    code = put_text(NO_GPU, key, text, length);
    return code == NOT_SUPPORTED ? NOT_FOUND : code;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
    nvmlReturn_t code = begin(NO_GPU, "nvmlDeviceGetCount_v2");
    if (code) return code;
    for (*count = 0; nth((int)*count, NO_GPU) >= 0; (*count)++) {}
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
    int gpu = nth((int)index, NO_GPU);
    nvmlReturn_t code = begin(gpu < 0 ? NO_GPU : gpu, "nvmlDeviceGetHandleByIndex_v2");
    if (code) return code;
    if (gpu < 0) return INVALID_ARGUMENT;
    *device = handle_of(gpu);
    return SUCCESS;
}

TEXT(nvmlDeviceGetUUID, "uuid")
TEXT(nvmlDeviceGetName, "name")

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    GPU("nvmlDeviceGetMigMode");
    code = put_small(gpu, "mig", current);
    *pending = *current;
    return code;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count)
{
    GPU("nvmlDeviceGetMaxMigDeviceCount");
    *count = lookup(gpu, "mig") ? 7 : 0;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned n, nvmlDevice_t *part)
{
    GPU("nvmlDeviceGetMigDeviceHandleByIndex");
    int found = nth((int)n, gpu);
    if (found < 0) return NOT_FOUND;
    *part = handle_of(found);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, Memory *memory)
{
    GPU("nvmlDeviceGetMemoryInfo");
    if (put(gpu, "memory.total", &memory->total) || put(gpu, "memory.used", &memory->used))
        return NOT_SUPPORTED;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                     ProcessInfo *infos)
{
    GPU("nvmlDeviceGetComputeRunningProcesses_v3");
    const char *text = lookup(gpu, "processes");
    unsigned room = *count;
    if (!text) return NOT_SUPPORTED;
    *count = 0;
    while (*text && strcmp(text, "none")) {
        char pid[16];
        u64 used;
        int length;
        if (sscanf(text, " %15[^:]:%llu%n", pid, &used, &length) < 2) break;
        if (*count < room && infos) {
            ProcessInfo info = {!strcmp(pid, "self") ? (unsigned)getpid() : (unsigned)atoi(pid),
                                used, ~0u, ~0u};
            infos[*count] = info;
        }
        ++*count;
        text += length;
    }
    return *count > room ? INSUFFICIENT_SIZE : SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, Utilization *rates)
{
    GPU("nvmlDeviceGetUtilizationRates");
    code = put_small(gpu, "utilisation", &rates->gpu);
    if (!code && put_small(gpu, "memory_utilisation", &rates->memory)) rates->memory = 0;
    return code;
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned *value)
{
    (void)sensor;
    GPU("nvmlDeviceGetTemperature");
    return put_small(gpu, "temperature", value);
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, FieldValue *values)
{
    GPU("nvmlDeviceGetFieldValues");
    for (int n = 0; n < count; n++) {
        u64 value = 0;
        values[n].result = put_numbered(gpu, "field", values[n].field, &value);
        values[n].timestamp = (int64_t)(moment() * 1e6);
        values[n].type = value > ~0u ? 3 : 1;
        if (values[n].type == 3) values[n].value.ull = value;
        else values[n].value.ui = (unsigned)value;
    }
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    GPU("nvmlDeviceGetCudaComputeCapability");
    const char *text = lookup(gpu, "capability");
    return text && sscanf(text, "%d %d", major, minor) == 2 ? SUCCESS : NOT_SUPPORTED;
}

SMALL(nvmlDeviceGetComputeMode, "mode")
NUMBERED(nvmlDeviceGetClockInfo, "clock")
NUMBERED(nvmlDeviceGetMaxClockInfo, "max_clock")
NUMBERED(nvmlDeviceGetTemperatureThreshold, "threshold")
SMALL(nvmlDeviceGetPowerUsage, "power_mw")
SMALL(nvmlDeviceGetEnforcedPowerLimit, "power_limit_mw")
LARGE(nvmlDeviceGetTotalEnergyConsumption, "energy_mj")
SMALL(nvmlDeviceGetFanSpeed, "fan")
LARGE(nvmlDeviceGetCurrentClocksEventReasons, "reasons")
