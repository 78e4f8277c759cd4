/* Preloaded: the CPUID instruction reports an older x86-64 processor, so that libraries choose the kernels they have for it.
 *
 * Linux lets a process trap CPUID (arch_prctl ARCH_SET_CPUID) where processor and kernel can.
 * Elsewhere the instructions of the libraries named in MASK_CPUID_SITES are replaced by UD2, which is as long, as soon as
 * a library is loaded. Either way the handler runs the instruction and clears feature bits. The kernels then run
 * natively: results are exact, and so are times, as far as another processor's instructions take as long as this one's.
 * Bits: Intel 64 Software Developer's Manual, volume 2, CPUID.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define BIT(n) (1u << (n))
#define ARCH_SET_CPUID 0x1012
enum { NOTHING, VNNI, AVX512, AVX2, SSE41 }; /* each lacks what the ones before lack */

static int level, replacing;
static int caught = SIGSEGV; /* what CPUID, or what stands in its place, raises */
static struct sigaction others;
static int (*next_sigaction)(int, const struct sigaction *, struct sigaction *);
static void *(*next_dlopen)(const char *, int);

/* Python's faulthandler asks for the signal, too: it gets what is no CPUID. */
int sigaction(int number, const struct sigaction *new, struct sigaction *old) {
  if (!next_sigaction) next_sigaction = dlsym(RTLD_NEXT, "sigaction");
  if (number != caught || level == NOTHING) return next_sigaction(number, new, old);
  if (old) *old = others;
  if (new) others = *new;
  return 0;
}

static long trap_cpuid(int on) { return replacing ? 0 : syscall(SYS_arch_prctl, ARCH_SET_CPUID, on ? 0 : 1); }

static struct { unsigned long offset; char library[256]; } sites[256]; /* of CPUID instructions */
static int site_count;

/* Each line: the offset in a library, in hexadecimal, and the name of its file. */
static void read_sites(const char *path) {
  FILE *file = fopen(path, "re");
  while (file && site_count < 256 && fscanf(file, "%lx %255s", &sites[site_count].offset, sites[site_count].library) == 2)
    site_count++;
  if (!site_count) _exit(119);
  fclose(file);
}

static int replace_in(struct dl_phdr_info *library, size_t size, void *unused) {
  const char *slash = strrchr(library->dlpi_name, '/'), *name = slash ? slash + 1 : library->dlpi_name;
  (void)size, (void)unused;
  for (int i = 0; i < site_count; i++) {
    if (strcmp(sites[i].library, name)) continue;
    unsigned char *instruction = (unsigned char *)library->dlpi_addr + sites[i].offset;
    void *page = (void *)((uintptr_t)instruction & ~(uintptr_t)4095);
    if (instruction[0] != 0x0f || instruction[1] != 0xa2) continue; /* replaced before */
    if (mprotect(page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC)) _exit(119);
    instruction[1] = 0x0b;
    mprotect(page, 8192, PROT_READ | PROT_EXEC);
  }
  return 0;
}

void *dlopen(const char *path, int flags) {
  if (!next_dlopen) next_dlopen = dlsym(RTLD_NEXT, "dlopen");
  void *library = next_dlopen(path, flags);
  if (replacing && library && path) dl_iterate_phdr(replace_in, NULL);
  return library;
}

static void clear_features(unsigned leaf, unsigned subleaf, unsigned *a, unsigned *b, unsigned *c, unsigned *d) {
  if (leaf == 7 && subleaf == 0) {
    *d &= ~(BIT(22) | BIT(24) | BIT(25)); /* AMX */
    if (level >= AVX512) *c &= ~BIT(11);  /* AVX512_VNNI */
    if (level >= AVX2) {
      *b &= ~(BIT(16) | BIT(17) | BIT(21) | BIT(26) | BIT(27) | BIT(28) | BIT(30) | BIT(31)); /* AVX512 */
      *c &= ~(BIT(1) | BIT(6) | BIT(8) | BIT(9) | BIT(10) | BIT(12) | BIT(14));
      *d &= ~(BIT(2) | BIT(3) | BIT(8) | BIT(23));
    }
    if (level >= SSE41) *b &= ~(BIT(3) | BIT(5) | BIT(8)); /* BMI1, AVX2, BMI2 */
  }
  if (leaf == 7 && subleaf == 1) {
    *a &= ~(BIT(21) | BIT(23));         /* AMX_FP16, AVX_IFMA */
    *d &= ~(BIT(4) | BIT(5) | BIT(10)); /* AVX_VNNI_INT8, AVX_NE_CONVERT, AVX_VNNI_INT16 */
    if (level >= AVX512) *a &= ~(BIT(4) | BIT(5)); /* AVX_VNNI, AVX512_BF16 */
  }
  if (leaf == 1 && level >= SSE41) *c &= ~(BIT(12) | BIT(28) | BIT(29)); /* FMA, AVX, F16C */
}

static void handle(int number, siginfo_t *info, void *context) {
  greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
  const unsigned char *instruction = (const unsigned char *)registers[REG_RIP];
  unsigned leaf = (unsigned)registers[REG_RAX], subleaf = (unsigned)registers[REG_RCX], a, b, c, d;
  (void)number, (void)info;
  if (instruction[0] != 0x0f || instruction[1] != (replacing ? 0x0b : 0xa2)) { /* another fault: once more, for its handler */
    next_sigaction(caught, &others, NULL);
    return;
  }
  trap_cpuid(0);
  __asm__ volatile("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(leaf), "c"(subleaf));
  trap_cpuid(1);
  clear_features(leaf, subleaf, &a, &b, &c, &d);
  registers[REG_RAX] = a, registers[REG_RBX] = b, registers[REG_RCX] = c, registers[REG_RDX] = d;
  registers[REG_RIP] += 2;
}

__attribute__((constructor)) static void begin(void) {
  static const char *names[] = {"", "vnni", "avx512", "avx2", "sse41"};
  const char *wanted = getenv("MASK_CPUID");
  struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART};
  for (int i = VNNI; wanted && i <= SSE41; i++)
    if (!strcmp(wanted, names[i])) level = i;
  if (level == NOTHING) return;
  if (!next_sigaction) next_sigaction = dlsym(RTLD_NEXT, "sigaction");
  if (trap_cpuid(1)) {
    if (!getenv("MASK_CPUID_SITES")) _exit(119);
    read_sites(getenv("MASK_CPUID_SITES"));
    replacing = 1, caught = SIGILL;
  }
  next_sigaction(caught, &action, &others);
}
