// SPDX-License-Identifier: Apache-2.0
/// \file
/// The one home of what `PAGEDKV_COMPILED` promises: the default policies, instantiated once.
#include <pagedkv/pagedkv.hpp>

PAGEDKV_NAMESPACE_BEGIN

template class detail::CacheCore<DefaultPolicy>;
template class BasicKvCache<DefaultPolicy>;
template class BasicSequence<DefaultPolicy>;
template class BasicPin<DefaultPolicy>;
template class BasicBatch<DefaultPolicy>;

PAGEDKV_NAMESPACE_END
