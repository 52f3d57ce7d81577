#include "storage/csd/opencl/chunk_updater.h"

#include <algorithm>
#include <array>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "compression/codec.h"
#include "optimizer/rules/opencl/rule_sources.h"
#include "storage/csd/opencl/chunk_cl.h"
#include "storage/cuts/extents/extent_format.h"
#include "storage/disk/disk.h"

namespace eps::opencl {
namespace {

namespace format = extent_format;

constexpr size_t kLanes = 16;   // of SquareSum
constexpr size_t kGroup = 64;   // items that update elements together
constexpr size_t kTables = 12;  // of chunk.cl

// The structs of chunk.cl.
struct Elements {
  cl_ulong weights;
  cl_ulong gradient;
  cl_ulong stride;
  cl_ulong first;
  cl_ulong elements;
};
struct SegmentInBuffer {
  cl_ulong first;
  cl_uint rows;
  cl_uint cols;
};

template <class T>
absl::Span<const uint8_t> BytesOf(const std::vector<T>& values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(T)};
}
template <class T>
absl::Span<uint8_t> BytesOf(T* value) {
  return {reinterpret_cast<uint8_t*>(value), sizeof(T)};
}

std::string Hex(uint64_t value) { return absl::StrCat(absl::Hex(value, absl::kZeroPad8)); }

// The tables of CRC32C that chunk.cl describes.
std::vector<uint32_t> CrcTables() {
  constexpr uint32_t kPolynomial = 0x82f63b78;  // reversed
  std::vector<uint32_t> tables(kTables * 256);
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[byte] = crc;
  }
  const auto after_zero = [&](uint32_t crc) { return tables[crc & 0xff] ^ (crc >> 8); };
  for (size_t i = 256; i < size_t{8} * 256; ++i) tables[i] = after_zero(tables[i - 256]);
  std::array<uint32_t, 32> of_bit;  // what each bit becomes after a block of zeros
  for (size_t bit = 0; bit < 32; ++bit) {
    uint32_t crc = uint32_t{1} << bit;
    for (size_t i = 0; i < kDiskBlock; ++i) crc = after_zero(crc);
    of_bit[bit] = crc;
  }
  for (size_t i = 0; i < size_t{4} * 256; ++i) {
    for (size_t bit = 0; bit < 8; ++bit) {
      if ((i >> bit & 1) != 0) tables[size_t{8} * 256 + i] ^= of_bit[i / 256 * 8 + bit];
    }
  }
  return tables;
}

// Ranges of elements with equal numbers, which one launch updates: [first segment, end).
std::vector<std::pair<uint32_t, uint32_t>> EqualSegments(const Chunk& chunk,
                                                         const std::vector<double>& trust_ratios) {
  std::vector<std::pair<uint32_t, uint32_t>> ranges;
  const auto& all = chunk.segments;
  for (uint32_t i = 0; i < all.size(); ++i) {
    const bool equal = i > 0 && all[i].group == all[i - 1].group &&
                       all[i].offset == all[i - 1].offset + all[i - 1].elements() &&
                       (trust_ratios.empty() || trust_ratios[i] == trust_ratios[i - 1]);
    if (equal) {
      ++ranges.back().second;
    } else {
      ranges.emplace_back(i, i + 1);
    }
  }
  return ranges;
}

}  // namespace

// The structs of chunk.cl.
struct ChunkUpdater::Piece {
  cl_ulong at;
  cl_ulong bytes;
  cl_ulong first_block;
};
struct ChunkUpdater::Expected {
  cl_ulong at;
  cl_ulong bytes;
  cl_ulong nonce;
  cl_uint chunk;
  cl_uint slot;
  cl_uint pieces;
  cl_uint has_gradient;
  cl_uint gradient_crc;
};
struct ChunkUpdater::Verdict {
  enum Wrong : cl_uint {
    kNothing,
    kFooter,
    kMagic,
    kChunk,
    kSlot,
    kNonce,
    kPieces,
    kPiece,
    kGradient
  };

  cl_ulong version;
  cl_ulong term;
  cl_ulong expected;
  cl_ulong found;
  cl_uint wrong;
  cl_uint piece;
  cl_uint crc;
  cl_uint first_infinite;

  std::string What() const {
    static constexpr const char* kNames[] = {"", "", "magic", "chunk", "slot", "nonce", "pieces"};
    if (wrong == kFooter) {
      return absl::StrCat("CRC32C ", Hex(expected), " expected, ", Hex(found), " found");
    }
    if (wrong == kPiece) {
      return absl::StrCat("piece ", piece, ": CRC32C ", Hex(expected), " expected, ", Hex(found),
                          " found");
    }
    return absl::StrCat(kNames[wrong], " ", expected, " expected, ", found, " found");
  }
};

absl::StatusOr<std::unique_ptr<ChunkUpdater>> ChunkUpdater::New(JobSpec spec, Session* session,
                                                                const MemoryPart& memory,
                                                                MemoryAccount* account) {
  absl::StatusOr<std::string> rule = OpenClRule(spec.optimizer.name);
  if (!rule.ok()) {
    return absl::Status(rule.status().code(),
                        absl::StrCat(session->description(), ": ", rule.status().message(),
                                     "; set storage.csd.driver=emulated for this one"));
  }
  std::unique_ptr<ChunkUpdater> updater(new ChunkUpdater(std::move(spec), session, memory));
  EPS_ASSIGN_OR_RETURN(ChunkCompute compute, ChunkCompute::New(updater->spec_, account));
  updater->compute_ = std::make_unique<const ChunkCompute>(std::move(compute));
  EPS_RETURN_IF_ERROR(updater->Prepare(*rule));
  return updater;
}

absl::Status ChunkUpdater::Prepare(const std::string& rule) {
  // Exact arithmetic is the default of OpenCL, but for division and root.
  const std::string options = absl::StrCat(
      "-cl-std=CL1.2 -cl-fp32-correctly-rounded-divide-sqrt -DBLOCK=", kDiskBlock,
      " -DTABLE_AT=", format::footer::kTableAt,
      " -DCRC_BYTES_AT_END=", format::footer::kCrcBytesAtEnd, " -DTILE_ROWS=", kTileRows,
      " -DTILE_COLS=", kTileCols, " -DMAGIC=", format::kFooterMagic, "UL");
  EPS_RETURN_IF_ERROR(session_->Build(absl::StrCat(rule, kChunkCl), options));
  size_t segments = 1;
  uint64_t blocks = 0, pieces = 0;
  for (const Chunk& chunk : chunks_.chunks()) {
    segments = std::max(segments, chunk.segments.size());
    const ExtentLayout layout(chunks_, {chunk.id}, compute_->arrays(), 0, spec_.training.parts);
    const ExtentLayout::Area& area = layout.area(0);
    blocks = std::max(blocks, (area.data_bytes + area.gradient_bytes) / kDiskBlock + 1);
    pieces = std::max(pieces, uint64_t{area.pieces} + 1);
  }
  const std::vector<uint32_t> tables = CrcTables();
  const uint64_t result_bytes =
      std::max(sizeof(Verdict), sizeof(SegmentSquares) * csd::kMaxMeasuredSegments);
  const struct {
    cl_mem* buffer;
    uint64_t bytes;
  } buffers[] = {
      {&tables_, tables.size() * sizeof(cl_uint)},
      {&pieces_, pieces * sizeof(Piece)},
      {&blocks_, blocks * sizeof(cl_uint)},
      {&crcs_, pieces * sizeof(cl_uint)},
      {&segments_, segments * sizeof(SegmentInBuffer)},
      {&result_, result_bytes},
  };
  for (const auto& [buffer, bytes] : buffers) {
    EPS_ASSIGN_OR_RETURN(*buffer, session_->NewBuffer(CL_MEM_READ_WRITE, bytes));
  }
  return session_->WriteAfterKernels(tables_, BytesOf(tables));
}

absl::StatusOr<std::string> ChunkUpdater::Run(absl::string_view kernel, uint64_t at,
                                              uint64_t bytes) {
  EPS_ASSIGN_OR_RETURN(const csd::Kernel decoded, csd::DecodeKernel(kernel));
  const Range range = {memory_.begin + at, bytes};
  MutexLock lock(&mu_);
  return std::visit(
      [&](const auto& k) EPS_REQUIRES(mu_) -> absl::StatusOr<std::string> {
        EPS_ASSIGN_OR_RETURN(const auto result, Do(k, range));
        return csd::Encode(result);
      },
      decoded);
}

absl::Status ChunkUpdater::StartCrcs(const ExtentLayout::Area& area, uint64_t at,
                                     const Gradient* gradient_or_null) {
  std::vector<Piece> pieces;
  uint64_t blocks = 0;
  const auto add = [&](uint64_t begin, uint64_t bytes) {
    pieces.push_back({begin, bytes, blocks});
    blocks += bytes / kDiskBlock;
  };
  area.ForEachPiece(area.arrays,
                    [&](uint32_t, uint64_t begin, uint64_t bytes) { add(at + begin, bytes); });
  const auto of_chunk = static_cast<cl_uint>(pieces.size());
  if (gradient_or_null != nullptr) add(gradient_or_null->at, gradient_or_null->bytes);
  EPS_RETURN_IF_ERROR(session_->WriteAfterKernels(pieces_, BytesOf(pieces)));
  EPS_RETURN_IF_ERROR(session_->Launch("crc_blocks", {format::kCrcBytes / kDiskBlock, of_chunk},
                                       memory_.buffer, pieces_, cl_uint{0}, tables_, blocks_));
  if (gradient_or_null != nullptr) {
    EPS_RETURN_IF_ERROR(session_->Launch("crc_blocks", {gradient_or_null->bytes / kDiskBlock},
                                         memory_.buffer, pieces_, of_chunk, tables_, blocks_));
  }
  return session_->Launch("crc_pieces", {pieces.size()}, memory_.buffer, pieces_, tables_, blocks_,
                          crcs_);
}

absl::StatusOr<ExtentFooter> ChunkUpdater::Check(const csd::KernelChunk& chunk, uint32_t slot,
                                                 uint64_t at, const Gradient* gradient_or_null) {
  const ExtentLayout::Area& area = chunk.area();
  const auto elements = static_cast<cl_uint>(chunk.chunk->elements);
  Verdict verdict = {};
  verdict.first_infinite = elements;
  EPS_RETURN_IF_ERROR(session_->WriteAfterKernels(result_, BytesOf(&verdict)));
  EPS_RETURN_IF_ERROR(StartCrcs(area, at, gradient_or_null));
  Expected expected = {at + area.data_bytes,
                       area.footer_bytes,
                       chunk.seals.nonce(),
                       chunk.chunk->id.value(),
                       slot,
                       area.pieces,
                       0,
                       0};
  if (gradient_or_null != nullptr) {
    expected.has_gradient = 1;
    expected.gradient_crc = gradient_or_null->crc32c;
    EPS_RETURN_IF_ERROR(session_->Launch("find_infinite", {elements, 1, kGroup}, memory_.buffer,
                                         cl_ulong{gradient_or_null->at}, elements, result_));
  }
  EPS_RETURN_IF_ERROR(
      session_->Launch("check", {}, memory_.buffer, expected, tables_, crcs_, result_));
  EPS_RETURN_IF_ERROR(session_->ReadAfterKernels(result_, BytesOf(&verdict)));
  if (verdict.wrong == Verdict::kGradient) {
    return csd::CheckGradient(chunk.chunk->id, static_cast<uint32_t>(verdict.expected),
                              static_cast<uint32_t>(verdict.found));
  }
  if (verdict.wrong != Verdict::kNothing) return chunk.seals.Damaged(slot, 0, verdict.What());
  if (verdict.first_infinite < elements) {
    return absl::InvalidArgumentError(
        absl::StrCat(session_->description(), ": the gradient of chunk ", chunk.chunk->id.value(),
                     ": element ", verdict.first_infinite, " is not finite"));
  }
  return ExtentFooter{Version(verdict.version), Term(verdict.term), verdict.crc};
}

absl::StatusOr<ExtentFooter> ChunkUpdater::Do(const csd::CheckKernel& kernel, const Range& range) {
  EPS_ASSIGN_OR_RETURN(
      const csd::KernelChunk chunk,
      csd::FindChunk(spec_, chunks_, compute_->arrays(), kernel.chunk, range.bytes));
  return Check(chunk, kernel.chunk.slot, range.begin + kernel.chunk.at, nullptr);
}

absl::StatusOr<csd::EncodeKernelResult> ChunkUpdater::Do(const csd::EncodeKernel& kernel,
                                                         const Range&) {
  return absl::UnimplementedError(absl::StrCat(
      session_->description(), " has no codecs, and cannot encode weights in ", kernel.codec));
}

absl::StatusOr<ChunkUpdater::Opened> ChunkUpdater::Open(const csd::UpdateKernel& kernel,
                                                        const Range& range) {
  EPS_ASSIGN_OR_RETURN(csd::KernelChunk chunk, csd::FindChunk(spec_, chunks_, compute_->arrays(),
                                                              kernel.from, range.bytes));
  const ChunkId id = kernel.from.chunk;
  EPS_RETURN_IF_ERROR(csd::CheckFits(id, kernel.gradient_at, kernel.gradient_bytes, range.bytes));
  const uint64_t bytes = chunk.chunk->elements * sizeof(float);
  if (kernel.gradient_codec != "fp32" || kernel.gradient_bytes != bytes ||
      kernel.gradient_at % sizeof(float) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(session_->description(), " has no codecs: a gradient of chunk ", id.value(),
                     " with ", kernel.gradient_bytes, " bytes in ", kernel.gradient_codec,
                     "; expected ", bytes, " in fp32"));
  }
  const Gradient gradient = {range.begin + kernel.gradient_at, bytes, kernel.gradient_crc32c};
  const uint64_t at = range.begin + kernel.from.at;
  EPS_ASSIGN_OR_RETURN(ExtentFooter footer, Check(chunk, kernel.from.slot, at, &gradient));
  EPS_ASSIGN_OR_RETURN(footer, chunk.CheckWritten(kernel.from.slot, footer, kernel.from_version,
                                                  kernel.from_crc32c));
  UpdateRequest request = csd::RequestOf(kernel, spec_);
  EPS_RETURN_IF_ERROR(ChunkCompute::CheckUpdate(*chunk.chunk, footer.version, request));
  EPS_RETURN_IF_ERROR(WriteSegments(*chunk.chunk));
  return Opened{std::move(chunk), std::move(request), at, gradient.at};
}

absl::Status ChunkUpdater::WriteSegments(const Chunk& chunk) {
  std::vector<SegmentInBuffer> segments;
  for (const Segment& s : chunk.segments) segments.push_back({s.offset, s.rows, s.cols});
  return session_->WriteAfterKernels(segments_, BytesOf(segments));
}

absl::StatusOr<double> ChunkUpdater::SumSquares(const Opened& opened) {
  EPS_RETURN_IF_ERROR(session_->Launch(
      "sum_squares", {kLanes, 1, kLanes}, memory_.buffer, cl_ulong{opened.gradient_at}, segments_,
      static_cast<cl_uint>(opened.chunk.chunk->segments.size()), opened.request.norm_scale, result_,
      GroupMemory{kLanes * sizeof(double)}));
  double sum = 0;
  EPS_RETURN_IF_ERROR(session_->ReadAfterKernels(result_, BytesOf(&sum)));
  return sum;
}

absl::Status ChunkUpdater::StartUpdates(const Opened& opened) {
  const Chunk& chunk = *opened.chunk.chunk;
  for (const auto& [first, end] : EqualSegments(chunk, opened.request.trust_ratios)) {
    const auto prepared = compute_->Prepare(chunk, opened.request, first);
    Elements of = {opened.at, opened.gradient_at, opened.chunk.area().stride_bytes / sizeof(float),
                   chunk.segments[first].offset, 0};
    for (uint32_t i = first; i < end; ++i) of.elements += chunk.segments[i].elements();
    EPS_RETURN_IF_ERROR(session_->Launch("update", {of.elements, 1, kGroup}, memory_.buffer, of,
                                         prepared->scalars()));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> ChunkUpdater::Seal(const Opened& opened, const csd::UpdateKernel& kernel) {
  const ExtentLayout::Area& area = opened.chunk.area();
  EPS_RETURN_IF_ERROR(session_->Launch(
      "pad", {area.arrays}, memory_.buffer, cl_ulong{opened.at}, cl_ulong{area.stride_bytes},
      cl_ulong{opened.chunk.chunk->elements * sizeof(float)}, cl_ulong{area.data_bytes}));
  EPS_RETURN_IF_ERROR(StartCrcs(area, opened.at, nullptr));
  const Expected footer = {opened.at + area.data_bytes,
                           area.footer_bytes,
                           opened.chunk.seals.nonce(),
                           kernel.from.chunk.value(),
                           kernel.to_slot,
                           area.pieces,
                           0,
                           0};
  EPS_RETURN_IF_ERROR(session_->Launch("seal", {}, memory_.buffer, footer,
                                       cl_ulong{kernel.to.value()}, cl_ulong{kernel.term.value()},
                                       tables_, crcs_, result_));
  uint32_t crc32c = 0;
  EPS_RETURN_IF_ERROR(session_->ReadAfterKernels(result_, BytesOf(&crc32c)));
  return crc32c;
}

absl::StatusOr<csd::UpdateKernelResult> ChunkUpdater::Do(const csd::UpdateKernel& kernel,
                                                         const Range& range) {
  EPS_ASSIGN_OR_RETURN(const Opened opened, Open(kernel, range));
  csd::UpdateKernelResult result;
  EPS_ASSIGN_OR_RETURN(result.sum_squares, SumSquares(opened));
  EPS_RETURN_IF_ERROR(StartUpdates(opened));
  EPS_ASSIGN_OR_RETURN(result.crc32c, Seal(opened, kernel));
  return result;
}

absl::StatusOr<MeasureResult> ChunkUpdater::Do(const csd::MeasureKernel& kernel,
                                               const Range& range) {
  if (!compute_->adapts()) {
    return absl::InvalidArgumentError("kernel that measures: the optimizer does not adapt");
  }
  EPS_ASSIGN_OR_RETURN(const Opened opened, Open(kernel.update, range));
  const Chunk& chunk = *opened.chunk.chunk;
  const auto count = static_cast<uint32_t>(chunk.segments.size());
  if (count > csd::kMaxMeasuredSegments) {
    return absl::InvalidArgumentError(absl::StrCat(
        "kernel that measures ", count, " segments; expected at most ", csd::kMaxMeasuredSegments));
  }
  const Elements of = {opened.at, opened.gradient_at,
                       opened.chunk.area().stride_bytes / sizeof(float), 0, chunk.elements};
  for (uint32_t i = 0; i < count; ++i) {
    const auto prepared = compute_->Prepare(chunk, opened.request, i);
    EPS_RETURN_IF_ERROR(session_->Launch("measure", {kLanes, 1, kLanes}, memory_.buffer, of,
                                         segments_, i, prepared->scalars(), result_,
                                         GroupMemory{kLanes * sizeof(double)}));
  }
  std::vector<SegmentSquares> sums(count);
  EPS_RETURN_IF_ERROR(
      session_->ReadAfterKernels(result_, absl::MakeSpan(reinterpret_cast<uint8_t*>(sums.data()),
                                                         sums.size() * sizeof(SegmentSquares))));
  return MeasureResult{std::move(sums)};
}

}  // namespace eps::opencl
