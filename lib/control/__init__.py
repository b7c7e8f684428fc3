"""Room control: the control plane: observe, decide, perform."""
