/*! Included by TVM's tensor cache, which uses nothing of it. Missing in TVM's wheel. */
#pragma once
