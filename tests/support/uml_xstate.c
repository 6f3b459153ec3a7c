/* User-mode Linux up to 6.9 knows 2696 bytes of a process's extended registers. A host whose processor has more (AMX)
 * refuses to set a part. So each set of a part becomes: get all, replace the part, set all. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/uio.h>

#define NT_X86_XSTATE 0x202L

typedef long (*ptrace_call)(int, pid_t, void *, void *);

long ptrace(enum __ptrace_request request, ...)
{
    static ptrace_call real;
    static char whole[1 << 16];
    va_list arguments;
    va_start(arguments, request);
    pid_t pid = va_arg(arguments, pid_t);
    void *address = va_arg(arguments, void *);
    void *data = va_arg(arguments, void *);
    va_end(arguments);
    if (!real)
        real = (ptrace_call)dlsym(RTLD_NEXT, "ptrace");
    if (request != PTRACE_SETREGSET || (long)address != NT_X86_XSTATE)
        return real(request, pid, address, data);
    struct iovec *part = data;
    struct iovec all = {whole, sizeof whole};
    long result = real(PTRACE_GETREGSET, pid, address, &all);
    if (result < 0 || all.iov_len <= part->iov_len)
        return real(request, pid, address, data);
    memcpy(whole, part->iov_base, part->iov_len);
    return real(PTRACE_SETREGSET, pid, address, &all);
}
