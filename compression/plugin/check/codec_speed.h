#ifndef EPS_COMPRESSION_PLUGIN_CHECK_CODEC_SPEED_H_
#define EPS_COMPRESSION_PLUGIN_CHECK_CODEC_SPEED_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "compression/plugin/codec_plugin.h"

namespace eps {

// Times `encode` and `decode` of a codec over arrays larger than the caches. Create it before the
// process is fenced. Thread-compatible.
class CodecSpeedTrial {
 public:
  // Null if `elements` is 0, or if there is no memory for the arrays.
  static std::unique_ptr<CodecSpeedTrial> New(const CodecPlugin* plugin, uint64_t elements);
  CodecSpeedTrial(const CodecSpeedTrial&) = delete;
  CodecSpeedTrial& operator=(const CodecSpeedTrial&) = delete;

  // Measures in turn with a loop that copies, and writes the lines `speed` and `round`
  // (codec_lines.h). Writes none if `decode` refuses an encoding.
  void RunAndReport();

 private:
  CodecSpeedTrial(const CodecPlugin* plugin, size_t elements);
  // Return seconds.
  double TimeEncode();
  double TimeDecode();
  double TimeCopy();

  const CodecPlugin* const plugin_;
  const size_t elements_;
  std::vector<size_t> sizes_;  // of the encoded pieces
  // Mapped.
  float* gradient_ = nullptr;
  float* decoded_ = nullptr;
  uint8_t* bytes_ = nullptr;
  bool refused_ = false;
};

}  // namespace eps

#endif  // EPS_COMPRESSION_PLUGIN_CHECK_CODEC_SPEED_H_
