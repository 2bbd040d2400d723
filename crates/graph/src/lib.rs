//! Contract, circuit, IR, passes, binding and plan of a model.
