#ifndef EPS_STORAGE_LOG_LOG_FORMAT_H_
#define EPS_STORAGE_LOG_LOG_FORMAT_H_

// The bytes of the contribution log: constants and offsets only (docs/formats/log.md). All integers
// are little-endian; every block of kBlock bytes is written whole.

#include <cstddef>
#include <cstdint>

namespace eps::log_format {

inline constexpr uint32_t kVersion = 1;
inline constexpr uint64_t kBlock = 4096;                      // alignment of everything
inline constexpr uint64_t kHeaderMagic = 0x3130474f4c535045;  // "EPSLOG01"
inline constexpr uint64_t kBatchMagic = 0x3130544142535045;   // "EPSBAT01"
inline constexpr const char* kFileName = "contributions.eps";
inline constexpr const char* kFreshSuffix = ".new";  // of a file that is being created

// The first block of the file; the ring follows it.
namespace header {
inline constexpr size_t kMagicAt = 0;         // u64
inline constexpr size_t kVersionAt = 8;       // u32
inline constexpr size_t kZeroAt = 12;         // u32
inline constexpr size_t kJobAt = 16;          // u64
inline constexpr size_t kShardAt = 24;        // u32
inline constexpr size_t kShardsAt = 28;       // u32
inline constexpr size_t kNonceAt = 32;        // u64: that of the extents
inline constexpr size_t kRingBytesAt = 40;    // u64
inline constexpr size_t kBatchBytesAt = 48;   // u64: of the largest batch
inline constexpr size_t kFileNumberAt = 56;   // u64: of this file (FileIdentity)
inline constexpr size_t kFileBornAt = 64;     // u64
inline constexpr size_t kCrcAt = kBlock - 4;  // u32: of the bytes before
}  // namespace header

// Precedes the entries of a batch.
namespace batch {
inline constexpr size_t kMagicAt = 0;         // u64
inline constexpr size_t kTermAt = 8;          // u64
inline constexpr size_t kIncarnationAt = 16;  // u64
inline constexpr size_t kPositionAt = 24;     // u64: bytes of the ring, also of all earlier laps
inline constexpr size_t kAfterAt = 32;        // u64: the position at which the batch before ends
inline constexpr size_t kBytesAt = 40;        // u64: of head and entries, without the padding
inline constexpr size_t kEntriesAt = 48;      // u32
inline constexpr size_t kContentCrcAt = 52;   // u32: of the entries
inline constexpr size_t kZeroAt = 56;         // u32
inline constexpr size_t kCrcAt = 60;          // u32: of the head's bytes before
inline constexpr size_t kHeadBytes = 64;
}  // namespace batch

// Precedes the content of an entry: text, payload and residual, in this order.
namespace entry {
inline constexpr size_t kStepAt = 0;            // u64
inline constexpr size_t kTextBytesAt = 8;       // u64
inline constexpr size_t kPayloadBytesAt = 16;   // u64
inline constexpr size_t kResidualBytesAt = 24;  // u64
inline constexpr size_t kHeadBytes = 32;
}  // namespace entry

}  // namespace eps::log_format

#endif  // EPS_STORAGE_LOG_LOG_FORMAT_H_
