// Kernels over a chunk in device memory, as it lies in a slot (docs/formats/extent.md). They follow
// the arithmetic and the rule of an optimizer (optimizer/rules/opencl), and constants that the host
// defines: BLOCK, TABLE_AT, CRC_BYTES_AT_END, TILE_ROWS, TILE_COLS, MAGIC.
//
// Offsets are bytes from the begin of `memory`.

// ---- CRC32C. `tables` has 12 tables of 256 numbers: T[k][b] is the CRC of byte b and k zeros, for
// 8 bytes at once; then S[k][b] is what byte k of a CRC becomes after BLOCK zeros.

uint CrcOfWords(__global const uint* words, ulong count, uint crc, __constant uint* tables) {
  ulong i = 0;
  for (; i + 2 <= count; i += 2) {
    const uint a = words[i] ^ crc;
    const uint b = words[i + 1];
    crc = tables[7 * 256 + (a & 0xff)] ^ tables[6 * 256 + (a >> 8 & 0xff)] ^
          tables[5 * 256 + (a >> 16 & 0xff)] ^ tables[4 * 256 + (a >> 24)] ^
          tables[3 * 256 + (b & 0xff)] ^ tables[2 * 256 + (b >> 8 & 0xff)] ^
          tables[256 + (b >> 16 & 0xff)] ^ tables[b >> 24];
  }
  if (i < count) {
    const uint a = words[i] ^ crc;
    crc = tables[3 * 256 + (a & 0xff)] ^ tables[2 * 256 + (a >> 8 & 0xff)] ^
          tables[256 + (a >> 16 & 0xff)] ^ tables[a >> 24];
  }
  return crc;
}

uint AfterBlockOfZeros(uint crc, __constant uint* tables) {
  __constant uint* shift = tables + 8 * 256;
  return shift[crc & 0xff] ^ shift[256 + (crc >> 8 & 0xff)] ^ shift[512 + (crc >> 16 & 0xff)] ^
         shift[768 + (crc >> 24)];
}

// Bytes under one CRC32C: whole words.
typedef struct {
  ulong at;
  ulong bytes;
  ulong first_block;  // of its whole blocks among those of all pieces
} Piece;

// One item per whole block of pieces [first, …) by the second dimension.
__kernel void crc_blocks(__global const uchar* memory, __global const Piece* pieces, uint first,
                         __constant uint* tables, __global uint* blocks) {
  const Piece piece = pieces[first + get_global_id(1)];
  const ulong block = get_global_id(0);
  if (block >= piece.bytes / BLOCK) return;
  blocks[piece.first_block + block] =
      CrcOfWords((__global const uint*)(memory + piece.at + block * BLOCK), BLOCK / 4, 0, tables);
}

// One item per piece: joins the CRCs of its blocks, and adds the rest.
__kernel void crc_pieces(__global const uchar* memory, __global const Piece* pieces,
                         __constant uint* tables, __global const uint* blocks,
                         __global uint* crcs) {
  const Piece piece = pieces[get_global_id(0)];
  const ulong count = piece.bytes / BLOCK;
  uint crc = 0xffffffff;
  for (ulong i = 0; i < count; ++i) {
    crc = AfterBlockOfZeros(crc, tables) ^ blocks[piece.first_block + i];
  }
  crc = CrcOfWords((__global const uint*)(memory + piece.at + count * BLOCK),
                   piece.bytes % BLOCK / 4, crc, tables);
  crcs[get_global_id(0)] = ~crc;
}

// ---- Checks

// The head of a footer.
typedef struct {
  ulong magic;
  uint chunk;
  uint slot;
  ulong version;
  ulong term;
  ulong nonce;
  uint pieces;
} Footer;

// What a chunk must be, and its gradient if it has one. The chunk's pieces come first in the CRCs.
typedef struct {
  ulong at;            // of the footer
  ulong bytes;         // of the footer
  ulong nonce;
  uint chunk;
  uint slot;
  uint pieces;         // of the chunk
  uint has_gradient;
  uint gradient_crc;
} Expected;

// The first thing that is wrong, by the enumerators of Verdict::Wrong in chunk_updater.cc.
typedef struct {
  ulong version;
  ulong term;
  ulong expected;
  ulong found;
  uint wrong;
  uint piece;
  uint crc;             // of the footer
  uint first_infinite;  // element of the gradient
} Verdict;

// Sets first_infinite of the verdict, which the host has set to the number of elements.
__kernel void find_infinite(__global const uchar* memory, ulong gradient, uint elements,
                            __global Verdict* verdict) {
  const uint i = get_global_id(0);
  if (i >= elements) return;
  const uint bits = ((__global const uint*)(memory + gradient))[i];
  if ((bits & 0x7f800000) == 0x7f800000) atomic_min(&verdict->first_infinite, i);
}

void Judge(__global Verdict* verdict, uint wrong, ulong expected, ulong found) {
  if (verdict->wrong != 0 || expected == found) return;
  verdict->wrong = wrong;
  verdict->expected = expected;
  verdict->found = found;
}

__kernel void check(__global const uchar* memory, const Expected expected,
                    __constant uint* tables, __global const uint* crcs,
                    __global Verdict* verdict) {
  __global const Footer* footer = (__global const Footer*)(memory + expected.at);
  const ulong crc_at = expected.bytes - CRC_BYTES_AT_END;
  const uint crc = *(__global const uint*)(memory + expected.at + crc_at);
  verdict->wrong = 0;
  verdict->version = footer->version;
  verdict->term = footer->term;
  verdict->crc = crc;
  const uint found =
      ~CrcOfWords((__global const uint*)footer, crc_at / 4, 0xffffffff, tables);
  Judge(verdict, 1, crc, found);
  Judge(verdict, 2, MAGIC, footer->magic);
  Judge(verdict, 3, expected.chunk, footer->chunk);
  Judge(verdict, 4, expected.slot, footer->slot);
  Judge(verdict, 5, expected.nonce, footer->nonce);
  Judge(verdict, 6, expected.pieces, footer->pieces);
  __global const uint* table = (__global const uint*)(memory + expected.at + TABLE_AT);
  for (uint i = 0; i < expected.pieces && verdict->wrong == 0; ++i) {
    verdict->piece = i;
    Judge(verdict, 7, table[i], crcs[i]);
  }
  if (expected.has_gradient) Judge(verdict, 8, expected.gradient_crc, crcs[expected.pieces]);
}

// ---- Updates

// A chunk's arrays, and the elements of it that one launch is for.
typedef struct {
  ulong weights;
  ulong gradient;
  ulong stride;  // floats from array to array
  ulong first;
  ulong elements;
} Elements;

__kernel void update(__global uchar* memory, const Elements of, const Scalars scalars) {
  if (get_global_id(0) >= of.elements) return;
  const ulong i = of.first + get_global_id(0);
  UpdateElement(scalars, ((__global const float*)(memory + of.gradient))[i],
                (__global float*)(memory + of.weights) + i, of.stride);
}

// A tensor's part of a chunk: rows of elements, one after the other.
typedef struct {
  ulong first;
  uint rows;
  uint cols;
} Segment;

#define LANES 16

// Calls ADD(element) for the elements of a segment in a lane of SquareSum (optimizer/update_rule.h)
// in the order of their tiles.
#define FOR_EACH_OF_LANE(segment, lane, ADD)                                        \
  for (uint row = 0; row < segment.rows; row += TILE_ROWS) {                        \
    const uint end_row = min(row + TILE_ROWS, segment.rows);                        \
    for (uint col = 0; col < segment.cols; col += TILE_COLS) {                      \
      const uint end_col = min(col + TILE_COLS, segment.cols);                      \
      for (uint r = row; r < end_row; ++r) {                                        \
        for (uint c = col + lane; c < end_col; c += LANES) {                        \
          ADD(segment.first + (ulong)r * segment.cols + c);                         \
        }                                                                           \
      }                                                                             \
    }                                                                               \
  }

double PlusSquare(double sum, float x, float scale) {
  const double scaled = Mul(x, scale);
  const double square = scaled * scaled;
  return sum + square;
}

// Lanes i and i + 8 first, of these i and i + 4, then 2, then 1. All items of the group call it.
double Fold(__local double* lanes, uint lane, double sum) {
  lanes[lane] = sum;
  for (uint width = LANES / 2; width > 0; width /= 2) {
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane < width) lanes[lane] += lanes[lane + width];
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  return lanes[0];
}

// One group of one item per lane: the sum of squares of the scaled gradient.
__kernel void sum_squares(__global const uchar* memory, ulong gradient,
                          __global const Segment* segments, uint count, float scale,
                          __global double* result, __local double* lanes) {
  __global const float* grad = (__global const float*)(memory + gradient);
  const uint lane = get_local_id(0);
  double sum = 0;
#define ADD(i) sum = PlusSquare(sum, grad[i], scale)
  for (uint k = 0; k < count; ++k) {
    const Segment segment = segments[k];
    FOR_EACH_OF_LANE(segment, lane, ADD)
  }
#undef ADD
  const double total = Fold(lanes, lane, sum);
  if (lane == 0) *result = total;
}

#ifdef HAS_STEPS
// The sums of squares of a segment's weights and steps, into result[2 * index] and the next.
__kernel void measure(__global const uchar* memory, const Elements of,
                      __global const Segment* segments, uint index, const Scalars scalars,
                      __global double* result, __local double* lanes) {
  __global const float* grad = (__global const float*)(memory + of.gradient);
  __global const float* weights = (__global const float*)(memory + of.weights);
  const Segment segment = segments[index];
  const uint lane = get_local_id(0);
  double of_weights = 0, of_steps = 0;
#define ADD(i)                                                                        \
  of_weights = PlusSquare(of_weights, weights[i], 1);                                 \
  of_steps = PlusSquare(of_steps, StepOfElement(scalars, grad[i], weights + i, of.stride), 1)
  FOR_EACH_OF_LANE(segment, lane, ADD)
#undef ADD
  const double sum_of_weights = Fold(lanes, lane, of_weights);
  barrier(CLK_LOCAL_MEM_FENCE);
  const double sum_of_steps = Fold(lanes, lane, of_steps);
  if (lane == 0) {
    result[2 * index] = sum_of_weights;
    result[2 * index + 1] = sum_of_steps;
  }
}
#endif

// ---- Seals

// One item per array: zeros from the end of its elements to the next array, or to the footer.
__kernel void pad(__global uchar* memory, ulong weights, ulong stride_bytes, ulong used_bytes,
                  ulong data_bytes) {
  const ulong array = get_global_id(0);
  const ulong end =
      array + 1 == get_global_size(0) ? data_bytes : (array + 1) * stride_bytes;
  for (ulong at = array * stride_bytes + used_bytes; at < end; at += 4) {
    *(__global uint*)(memory + weights + at) = 0;
  }
}

// Writes the footer, whose version, term and slot are given, over the CRCs of its pieces.
__kernel void seal(__global uchar* memory, const Expected footer_of, ulong version, ulong term,
                   __constant uint* tables, __global const uint* crcs, __global uint* result) {
  __global uint* words = (__global uint*)(memory + footer_of.at);
  for (ulong i = 0; i < footer_of.bytes / 4; ++i) words[i] = 0;
  __global Footer* footer = (__global Footer*)words;
  footer->magic = MAGIC;
  footer->chunk = footer_of.chunk;
  footer->slot = footer_of.slot;
  footer->version = version;
  footer->term = term;
  footer->nonce = footer_of.nonce;
  footer->pieces = footer_of.pieces;
  for (uint i = 0; i < footer_of.pieces; ++i) words[TABLE_AT / 4 + i] = crcs[i];
  const ulong crc_at = footer_of.bytes - CRC_BYTES_AT_END;
  const uint crc = ~CrcOfWords(words, crc_at / 4, 0xffffffff, tables);
  words[crc_at / 4] = crc;
  *result = crc;
}
