// Which release of the chat encoding a checkpoint wants, read from its draft tensors.
#pragma once

#include <string>

#include "base/status.h"
#include "checkpoint/catalog.h"
#include "text/chat_encoding.h"

namespace fathom {

// 0731 where a DSpark drafter ships (mtp.0.main_proj.weight), else preview: classic MTP, no draft tensors, NVFP4, Pro.
// The DSpark edition of June has 0731's draft tensors and preview's trunk; nothing in it tells them apart, so its
// effort texts need the release to be given.
Release release_of_catalog(const TensorCatalog& catalog);

// Reads headers only.
Result<Release> release_of_checkpoint(const std::string& path);

}  // namespace fathom
