"""Room provision: the steps that make a machine on a Proxmox host."""
