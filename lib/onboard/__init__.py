"""Room onboard: the steps that give a machine an identity and an agent."""
