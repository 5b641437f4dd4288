#include "model/release_of_checkpoint.h"

namespace fathom {

Release release_of_catalog(const TensorCatalog& catalog) {
  return catalog.contains("mtp.0.main_proj.weight") ? Release::k0731 : Release::kPreview;
}

Result<Release> release_of_checkpoint(const std::string& path) {
  FATHOM_ASSIGN_OR_RETURN(const TensorCatalog catalog, open_catalog(path));
  return release_of_catalog(catalog);
}

}  // namespace fathom
