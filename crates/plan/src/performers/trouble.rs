//! What is wrong with a pod, as one reason.
