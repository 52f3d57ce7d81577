#ifndef EPS_STORAGE_BACKENDS_NEAR_DEVICE_USE_H_
#define EPS_STORAGE_BACKENDS_NEAR_DEVICE_USE_H_

namespace eps {

// How a backend uses its storage devices. Plain value.
struct DeviceUse {
  int sets = 3;  // chunks that a device updates at the same time
  // Whether the next chunk takes over each buffer of a set as soon as it is free, as in
  // Smart-Infinity (section 4.2); otherwise a set is free once its chunk is written.
  bool hands_buffers_over = false;
  // Whether the reduced gradients of mode sealed wait in device memory, if it has room for all of
  // the device; otherwise on the medium.
  bool gradients_in_memory = false;
  // Whether devices that have codecs encode weights; otherwise they come up in FP32.
  bool encodes_weights = true;
  // Whether the FP32 weights of an update come from the medium, as in Smart-Infinity; otherwise
  // from device memory.
  bool reads_weights_back = false;
};

}  // namespace eps

#endif  // EPS_STORAGE_BACKENDS_NEAR_DEVICE_USE_H_
