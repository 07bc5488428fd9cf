"""CRC-32 by the processor's multiplication of polynomials, for what is checked by the megabyte. Any thread.

The sums are those of `zlib.crc32`. Idea: "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
Instruction" (Gopal et al., Intel, 2009).
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint32_t

import zlib

cdef extern from *:
    """
    #include <array>
    #include <cstddef>
    #include <cstdint>
    #if defined(__x86_64__) && defined(__GNUC__)
    #include <immintrin.h>
    #define PILLARBOX_FOLDS 1
    #endif

    namespace pillarbox {

    #ifdef PILLARBOX_FOLDS
    // With its lowest power in the highest bit, as all polynomials here.
    constexpr std::uint32_t kPolynomial = 0xEDB88320;

    // One bit on: the polynomial times x.
    constexpr std::uint32_t times_x(std::uint32_t value) {
      return (value >> 1) ^ (value & 1 ? kPolynomial : 0);
    }

    // x to that power, by which what stands so many bits in front is multiplied to stand here. A product of
    // two mirrored numbers is short of one place, hence the shift.
    constexpr std::int64_t power(int bits) {
      std::uint32_t value = 0x80000000;
      for (int i = 0; i < bits; ++i) value = times_x(value);
      return std::int64_t(std::uint64_t(value) << 1);
    }

    constexpr std::array<std::uint32_t, 256> table_of_bytes() {
      std::array<std::uint32_t, 256> table{};
      for (std::uint32_t byte = 0; byte < 256; ++byte) {
        std::uint32_t value = byte;
        for (int i = 0; i < 8; ++i) value = times_x(value);
        table[byte] = value;
      }
      return table;
    }

    inline std::uint32_t by_bytes(std::uint32_t sum, const unsigned char* data, std::size_t size) {
      static constexpr auto table = table_of_bytes();
      for (std::size_t i = 0; i < size; ++i) sum = (sum >> 8) ^ table[(sum ^ data[i]) & 255];
      return sum;
    }

    __attribute__((target("pclmul,sse4.1")))
    inline __m128i moved(__m128i value, __m128i powers, __m128i to) {
      const __m128i low = _mm_clmulepi64_si128(value, powers, 0x00);
      const __m128i high = _mm_clmulepi64_si128(value, powers, 0x11);
      return _mm_xor_si128(_mm_xor_si128(low, high), to);
    }

    // size: 64 at least.
    __attribute__((target("pclmul,sse4.1")))
    inline std::uint32_t folded(std::uint32_t sum, const unsigned char* data, std::size_t size) {
      const auto load = [](const unsigned char* from) __attribute__((target("pclmul,sse4.1"))) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
      };
      const __m128i far = _mm_set_epi64x(power(4 * 128 - 32), power(4 * 128 + 32));
      const __m128i near = _mm_set_epi64x(power(128 - 32), power(128 + 32));
      __m128i lanes[4];
      for (int i = 0; i < 4; ++i) lanes[i] = load(data + 16 * i);
      lanes[0] = _mm_xor_si128(lanes[0], _mm_cvtsi32_si128(int(sum)));
      data += 64, size -= 64;
      for (; size >= 64; data += 64, size -= 64) {
        for (int i = 0; i < 4; ++i) lanes[i] = moved(lanes[i], far, load(data + 16 * i));
      }
      for (int i = 1; i < 4; ++i) lanes[i] = moved(lanes[i - 1], near, lanes[i]);
      alignas(16) unsigned char left[16];
      _mm_store_si128(reinterpret_cast<__m128i*>(left), lanes[3]);
      return by_bytes(by_bytes(0, left, 16), data, size);
    }

    inline bool folds() { return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1"); }
    inline std::uint32_t crc32(std::uint32_t before, const unsigned char* data, std::size_t size) {
      return ~(size < 64 ? by_bytes(~before, data, size) : folded(~before, data, size));
    }
    #else
    inline bool folds() { return false; }
    inline std::uint32_t crc32(std::uint32_t, const unsigned char*, std::size_t) { return 0; }
    #endif

    }  // namespace pillarbox
    """
    bint folds "pillarbox::folds"() noexcept nogil
    uint32_t sum_of "pillarbox::crc32"(uint32_t, const unsigned char* data, size_t size) noexcept nogil


# To get the GIL back may take longer than this.
cdef enum:
    MIN_BYTES_WITHOUT_GIL = 65536

cdef bint has_instructions = folds()


def crc32(data, uint32_t before=0):
    """The CRC-32 of `data`, behind bytes whose sum is `before`. Many bytes are summed without the GIL."""
    if not has_instructions:
        return zlib.crc32(data, before)
    cdef Py_buffer view
    cdef uint32_t total
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if view.len < MIN_BYTES_WITHOUT_GIL:
            total = sum_of(before, <const unsigned char*>view.buf, <size_t>view.len)
        else:
            with nogil:
                total = sum_of(before, <const unsigned char*>view.buf, <size_t>view.len)
    finally:
        PyBuffer_Release(&view)
    return total
