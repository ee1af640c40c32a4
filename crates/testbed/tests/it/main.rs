mod fault;
