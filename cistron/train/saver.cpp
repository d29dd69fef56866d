#include "cistron/train/saver.h"

#include <utility>

namespace cistron::train {

Saver::Saver(CheckpointFolder folder, const Options& options, dist::Communicator& world)
    : folder_(std::move(folder)), options_(options), world_(world) {
  if (!options.behind) return;
  own_ = world.split(0, "saver");
  background_ =
      std::make_unique<dist::Background>([this] { own_->abandon("this rank has left before its checkpoint was saved"); });
}

void Saver::save(Context& ctx, const CheckpointInfo& info, const nn::LocalParameters& parameters) {
  if (background_ == nullptr) return folder_.save(ctx, info, slices_of(parameters), options_.keep, world_);
  wait();  // so that there is one copy at most
  last_ = background_->submit([this, info, slices = copy_of(ctx, slices_of(parameters))] {
    Context host;
    folder_.save(host, info, slices, options_.keep, *own_);
  });
}

void Saver::wait() {
  if (background_ != nullptr) background_->wait(last_);
}

bool Saver::has_failed() {
  if (background_ == nullptr) return false;
  try {
    (void)background_->is_done(last_);
    return false;
  } catch (...) {
    return true;
  }
}

}  // namespace cistron::train
