// A ddp::Backend over TCP, for any set of ranks: of a whole group, or of some ranks of a mesh that several share.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ddp/backend.hpp>

#include "collectives/tcp/mesh.hpp"

namespace ddp::collectives::tcp {

/// With a mesh of its own. @param first_ordinal as MeshConfig's. Throws Error.
std::unique_ptr<Backend> make_backend(const BackendConfig& config, std::uint64_t first_ordinal = 0);

/// The mesh of a group; DDP_PEER_TIMEOUT is read. Throws Error.
std::shared_ptr<TcpMesh> make_mesh(const BackendConfig& config, std::uint64_t first_ordinal = 0);

/// Among @p members of a mesh, as TcpMesh::open_context. Its address() is empty; connect() is not called; abort() and
/// close() are the mesh's, and so are ranks named in a failure, but as ranks in @p members. All backends of a mesh
/// are called from one thread at a time, together.
std::unique_ptr<Backend> make_backend(std::shared_ptr<TcpMesh> mesh, std::uint16_t context, std::vector<int> members);

}  // namespace ddp::collectives::tcp
