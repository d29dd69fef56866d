#pragma once
#include <memory>

#include "cistron/dist/mesh.h"

namespace cistron::dist {

/// The mesh as rank `rank` sees it, without the others, for planning: meta tensors, whose shapes are checked, and every
/// collective is done when it returns. It cannot be split.
std::unique_ptr<Mesh> meta_mesh(const MeshShape& shape, int rank);

}  // namespace cistron::dist
