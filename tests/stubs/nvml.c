/* A stand-in for libnvidia-ml.so.1: answers what the environment tells it to.
 *
 * NVML_STUB_INIT=<code>       nvmlInit fails with this code (18: driver/library mismatch, 9: driver not loaded …)
 * NVML_STUB_DRIVER, _CUDA     "550.120", 12040
 * NVML_STUB_COUNT             number of GPUs
 * NVML_STUB_NAME, _CC         "NVIDIA A100-SXM4-40GB", "8.0"
 * NVML_STUB_MIG               "off", "on" (instances: NVML_STUB_INSTANCES); unset: not supported
 * NVML_STUB_BAD               index of a GPU whose handle fails with NVML_STUB_BAD_CODE (15: GPU is lost)
 * NVML_STUB_HANG=1            nvmlInit never returns;  NVML_STUB_CRASH=1: it ends the process
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int ret;
typedef struct { unsigned long long total, free, used; } memory;

static const char *get(const char *name, const char *other) { const char *v = getenv(name); return v ? v : other; }
static int number(const char *name, int other) { const char *v = getenv(name); return v ? atoi(v) : other; }

const char *nvmlErrorString(ret code) {
    switch (code) {
    case 4: return "Insufficient Permissions";
    case 9: return "Driver Not Loaded";
    case 12: return "NVML Shared Library Not Found";
    case 15: return "GPU is lost";
    case 18: return "Driver/library version mismatch";
    case 999: return "Unknown Error";
    default: return "Stub Error";
    }
}

ret nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (getenv("NVML_STUB_CRASH")) abort();
    while (getenv("NVML_STUB_HANG")) sleep(1);
    return number("NVML_STUB_INIT", 0);
}
ret nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
ret nvmlShutdown(void) { return 0; }

ret nvmlSystemGetDriverVersion(char *out, unsigned size) { snprintf(out, size, "%s", get("NVML_STUB_DRIVER", "550.120")); return 0; }
ret nvmlSystemGetNVMLVersion(char *out, unsigned size) { snprintf(out, size, "12.%s", get("NVML_STUB_DRIVER", "550.120")); return 0; }
ret nvmlSystemGetCudaDriverVersion_v2(int *out) { *out = number("NVML_STUB_CUDA", 12040); return 0; }
ret nvmlSystemGetCudaDriverVersion(int *out) { return nvmlSystemGetCudaDriverVersion_v2(out); }
ret nvmlDeviceGetCount_v2(unsigned *out) { *out = (unsigned)number("NVML_STUB_COUNT", 1); return 0; }

/* A handle is index + 1; a MIG instance is 1000 * (index + 1) + place. */
ret nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) {
    if ((int)index == number("NVML_STUB_BAD", -1)) return number("NVML_STUB_BAD_CODE", 15);
    *out = (void *)(unsigned long)(index + 1);
    return 0;
}
ret nvmlDeviceGetUUID(void *handle, char *out, unsigned size) {
    unsigned long h = (unsigned long)handle;
    if (h >= 1000) snprintf(out, size, "MIG-00000000-0000-0000-0000-%012lu", h);
    else snprintf(out, size, "GPU-00000000-0000-0000-0000-%012lu", h - 1);
    return 0;
}
ret nvmlDeviceGetName(void *handle, char *out, unsigned size) {
    (void)handle;
    snprintf(out, size, "%s", get("NVML_STUB_NAME", "NVIDIA A100-SXM4-40GB"));
    return 0;
}
ret nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    (void)handle;
    return sscanf(get("NVML_STUB_CC", "8.0"), "%d.%d", major, minor) == 2 ? 0 : 999;
}
ret nvmlDeviceGetMemoryInfo(void *handle, memory *out) {
    (void)handle;
    out->total = 40ULL << 30; out->used = 1ULL << 30; out->free = 39ULL << 30;
    return 0;
}
ret nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    const char *mig = getenv("NVML_STUB_MIG");
    (void)handle;
    if (!mig) return 3; /* not supported */
    *current = *pending = strcmp(mig, "on") == 0;
    return 0;
}
ret nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *out) { (void)handle; *out = 7; return 0; }
ret nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned place, void **out) {
    if ((int)place >= number("NVML_STUB_INSTANCES", 0)) return 6; /* not found */
    *out = (void *)((unsigned long)handle * 1000 + place);
    return 0;
}
