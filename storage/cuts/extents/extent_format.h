#ifndef EPS_STORAGE_CUTS_EXTENTS_EXTENT_FORMAT_H_
#define EPS_STORAGE_CUTS_EXTENTS_EXTENT_FORMAT_H_

// The bytes of extents: constants and offsets only (docs/formats/extent.md). All integers are
// little-endian; every block of kBlock bytes is written whole.

#include <cstddef>
#include <cstdint>

namespace eps::extent_format {

inline constexpr uint32_t kVersion = 1;            // of slots beside the catalogue
inline constexpr uint32_t kDrivesVersion = 2;      // of slots on the drives of storage.drives
inline constexpr uint64_t kBlock = 4096;           // alignment of everything
inline constexpr uint64_t kCrcBytes = 256u << 10;  // of an array under one CRC32C
inline constexpr uint64_t kHeaderMagic = 0x3130545845535045;  // "EPSEXT01"
inline constexpr uint64_t kFooterMagic = 0x31304b4843535045;  // "EPSCHK01"
inline constexpr const char* kFileNames[] = {"slot-0.eps", "slot-1.eps"};

// The first block of a slot file.
namespace header {
inline constexpr size_t kMagicAt = 0;           // u64
inline constexpr size_t kVersionAt = 8;         // u32
inline constexpr size_t kSlotAt = 12;           // u32: 0 or 1
inline constexpr size_t kJobAt = 16;            // u64
inline constexpr size_t kShardAt = 24;          // u32
inline constexpr size_t kShardsAt = 28;         // u32
inline constexpr size_t kNonceAt = 32;          // u64
inline constexpr size_t kChunksAt = 40;         // u32: owned chunks
inline constexpr size_t kArraysAt = 44;         // u32: weights and state fields
inline constexpr size_t kFileBytesAt = 48;      // u64
inline constexpr size_t kResidualBytesAt = 56;  // u64: of the area of residuals
inline constexpr size_t kDigestAt = 64;         // SHA-256 of the job spec
inline constexpr size_t kDriveAt = 96;          // u32: 0 in version 1, as is the next one
inline constexpr size_t kDrivesAt = 100;        // u32
inline constexpr size_t kCrcAt = kBlock - 4;    // u32: CRC32C of the preceding bytes
}  // namespace header

// The footer after a chunk's arrays, in whole blocks: a head, the CRCs of the arrays' pieces, zeros
// and, in the last four bytes, its own CRC.
namespace footer {
inline constexpr size_t kMagicAt = 0;     // u64
inline constexpr size_t kChunkAt = 8;     // u32
inline constexpr size_t kSlotAt = 12;     // u32
inline constexpr size_t kVersionAt = 16;  // u64: of the chunk's content
inline constexpr size_t kTermAt = 24;     // u64: the term in which it was written
inline constexpr size_t kNonceAt = 32;    // u64
inline constexpr size_t kPiecesAt = 40;   // u32: entries of the table
inline constexpr size_t kTableAt = 48;    // u32 each
inline constexpr size_t kCrcBytesAtEnd = 4;
}  // namespace footer

// The head before each residual. Residuals keep the order of the CutRequest.
namespace residual {
inline constexpr size_t kChunkAt = 0;  // u32
inline constexpr size_t kUseAt = 4;    // u32: the stage
inline constexpr size_t kPartAt = 8;   // u32
inline constexpr size_t kZeroAt = 12;  // u32
inline constexpr size_t kSizeAt = 16;  // u64: bytes that follow
inline constexpr size_t kHeadBytes = 24;
}  // namespace residual

}  // namespace eps::extent_format

#endif  // EPS_STORAGE_CUTS_EXTENTS_EXTENT_FORMAT_H_
